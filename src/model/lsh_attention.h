// Attention with locality-sensitive hashing (Kitaev et al., "Reformer", 2020, section 2), whose
// queries and keys share a projection (kernels/ops/lsh.h).
//
// The rotations of the hash are constants of a layer: random numbers keyed by the seed of the run,
// the layer and the head. So all layouts have equal ones, and later runs of a checkpoint too.
// Generation has no cache of keys, because a new token may move others to other chunks.
#pragma once

#include "src/model/core_attention.h"
#include "src/model/linear.h"
#include "src/model/sublayer.h"

namespace sy {

class LshAttention {
 public:
  static constexpr const char* trace_name = "attention";

  // Hl: number of heads of this rank.
  struct Saved {
    ConstView x;      // [B * S, D] the gathered input
    View qv;          // [B, S, 2 Hl, hd] queries, then values
    ConstView order;  // ops::LshAttentionForward::order
    View out;         // [B, S, Hl, hd]
    View lse;         // [B, Hl, S]
  };

  LshAttention(const LshAttentionSpec& spec, const SublayerContext& context, const std::string& prefix);

  // See Sublayer.
  const Linear& out() const { return out_; }
  void attend(const LayerContext& layer, ConstView x, Saved& s) const;
  void recompute(const LayerContext& layer, ConstView x, Saved& s) const;
  // dx: [T, D] = gradient with respect to x; dy: [T, D], with respect to the output
  void backward(const LayerContext& layer, ConstView dy, const Saved& s, View dx);

 private:
  // Returns the sorted tokens. Empty if they are not sorted.
  ConstView sorted(const LayerContext& layer, ConstView qv) const;

  LshAttentionSpec spec_;
  Index index_;             // in LayerContext::lsh_orders
  Index heads_, head_dim_;  // Hl, hd
  Tensor rotations_;        // ops::LshSort::rotations of this rank's heads
  Linear qv_, out_;
};

// Returns the rotations of the heads [first, first + count): [count, key_width, rounds, columns].
// prefix: of the layer's parameters, which keys random numbers
std::vector<float> lsh_rotations(const LshAttentionSpec& spec, const std::string& prefix, Index first, Index count);

}  // namespace sy
