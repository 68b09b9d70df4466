// Grouped-query causal attention with rotary positions or biases by distance, QK-norm, sparse patterns and sinks.
#pragma once

#include <optional>

#include "src/model/linear.h"
#include "src/model/relative.h"
#include "src/params/block_specs.h"

namespace sy {

class Attention {
 public:
  // Hl, Kl: the query and kv heads that this rank holds.
  struct Saved {
    ConstView x;   // [B * S, D] the gathered input
    View raw;      // [B, S, Hl + 2 Kl, hd] before QK-norm, where there is one
    View inverse;  // [B * S, Hl + Kl] of QK-norm
    View qkv;      // [B, S, Hl + 2 Kl, hd] after rotation
    View out;      // [B, S, Hl, hd]
    View lse;      // [B, Hl, S]
  };

  // prefix: of its parameters' names, "layers.3.attention.". rope_table: [positions, rotated / 2, 2] cos and sin (RopeTables);
  // none: it does not rotate.
  Attention(const AttentionSpec& spec, Index d_model, ParamStore& store, const std::string& prefix,
            ConstView rope_table);

  // to: [T, D] attention(x: [T, D])
  void forward(const Pass& pass, ConstView x, Output to, Saved& s) const;
  // dx: [T, D] = the gradient through the attention of dy: [T, D]
  void backward(const Pass& pass, ConstView dy, const Saved& s, View dx) const;

 private:
  // The query, key and value heads of a tensor of all three: [B, S, Hl + 2 Kl, hd].
  template <class V>
  auto queries(V qkv) const {
    return heads_of(qkv, 0, heads_);
  }
  template <class V>
  auto keys(V qkv) const {
    return heads_of(qkv, heads_, kv_heads_);
  }
  template <class V>
  auto values(V qkv) const {
    return heads_of(qkv, heads_ + kv_heads_, kv_heads_);
  }

  // desc_ with what attention learns of its own, in scratch memory.
  AttentionDesc described(const Device& device) const;
  // Adds to the gradients of what that is.
  void backward_learned(const Device& device, const AttentionDesc& desc, ConstView dout, const Saved& s) const;

  AttentionDesc desc_;
  std::optional<RelativeBias> relative_;
  Param sinks_;  // [Hl], or none
  ConstView rope_table_;
  Index heads_, kv_heads_, head_dim_;  // local
  QkNorm qk_norm_;
  Param norm_;  // [2, hd] of queries and keys, or none
  std::optional<Linear> qkv_, out_;
};

}  // namespace sy
