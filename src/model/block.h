// One block of the decoder: x + attention(norm(x)), then + ffn(norm(.)), where the FFN is dense or a MoE by layer.
#pragma once

#include <optional>

#include "src/model/attention.h"
#include "src/model/mlp.h"
#include "src/model/moe.h"
#include "src/model/norm.h"

namespace sy {

class Block {
 public:
  struct Saved {
    View x;                           // [T, D] the block's input
    View middle;                      // [T, D] after attention
    View attention_in, ffn_in;        // [T, D] normalised
    View attention_moments, ffn_moments;  // [T, 2]
    Attention::Saved attention;
    Mlp::Saved mlp;
    Moe::Saved moe;
  };

  // bias: the layer's selection bias [E], or none. rope_table: [positions, rotated / 2, 2] of the layer, or none.
  Block(const BlockSpec& spec, Index d_model, Index layer, ParamStore& store, View bias, ConstView rope_table);

  // Returns the block's output [T, D], taken from pass.saved. report: of a MoE layer.
  View forward(const Pass& pass, View x, Saved& s, RouterReport report) const;
  // d: [T, D], the gradient by the block's output, becomes that by its input.
  void backward(const Pass& pass, View d, Saved& s) const;

  bool is_moe() const { return moe_.has_value(); }
  CacheSpec cache_spec() const { return attention_.cache_spec(); }

 private:
  Index layer_;
  Norm attention_norm_, ffn_norm_;
  Attention attention_;
  std::optional<Mlp> mlp_;  // one of the two
  std::optional<Moe> moe_;
};

}  // namespace sy
