// Attention itself, of a layer's heads: how its scores are made, which keys a query sees, and what it learns of its own.
#pragma once

#include <optional>
#include <string>

#include "src/model/relative.h"
#include "src/params/block_specs.h"

namespace sy {

class Scores {
 public:
  // Of the Hl heads whose part of q.weight this rank holds. prefix: of its parameters' names, "layers.3.attention.".
  // positions: those that a sequence may have.
  Scores(const AttentionSpec& spec, ParamStore& store, const std::string& prefix, Index positions);

  Index window() const { return desc_.visible.window; }

  // q: heads of [B, S, Hl, w], k: [B, Sk, K, w], v: [B, Sk, K, vw] -> out: [B, S, Hl, vw], lse: [B, Hl, S]
  // query_offsets: [B] where keys and values are a cache (Visibility::query_offsets), or none.
  void forward(const Device& device, ConstHeads q, ConstHeads k, ConstHeads v, View out, View lse,
               ConstView query_offsets = {}) const;
  // dq, dk, dv: as q, k, v. The gradients of what it learns are added to.
  void backward(const Device& device, ConstView dout, ConstHeads q, ConstHeads k, ConstHeads v, ConstView out,
                ConstView lse, Heads dq, Heads dk, Heads dv) const;

 private:
  // desc_ with what attention learns of its own, in scratch memory.
  AttentionDesc described(const Device& device) const;

  AttentionDesc desc_;
  std::optional<RelativeBias> relative_;
  Param sinks_;  // [Hl], or none
};

}  // namespace sy
