// QK-clip (Kimi Team, "Kimi K2", 2025): scaling of the weights of queries and keys of heads whose
// scores become large.
#pragma once

#include "kernels/ops/operation.h"

namespace sy::ops {

// max_logits[h] = the maximum of itself and of largest[:, h].
struct MaxLogits {
  static constexpr std::string_view name = "max_logits";
  ConstView largest;  // [B, H, S] of AttentionForward
  View max_logits;    // [H], updated
  bool is_empty() const { return largest.elements() == 0; }
  Cost cost() const { return Cost().reads(largest).updates(max_logits); }
};

// Scales consecutive elements of the weight of queries or keys, so that the scores of query head h
// are multiplied by gamma[h] = min(1, threshold / max_logits[h]). Query heads may share a key head;
// the least of their gammas is g.
//   keys:    w *= sqrt(g)
//   queries: w *= gamma / sqrt(g), and w *= gamma for the elements whose keys all heads share
// Without sharing, both are sqrt(gamma). If coefficient is NaN, nothing changes.
struct QkClip {
  static constexpr std::string_view name = "qk_clip";
  ConstView coefficient;  // [1]
  ConstView max_logits;   // [H]
  float threshold;
  Index kv_heads;  // divides H
  bool keys;       // true: w is the weight of keys
  // Number of elements of one head of the parameter. The first `shared` of them make the elements
  // of queries whose keys all heads share: the rotary ones of latent attention.
  Index head_elements, shared = 0;
  Index offset;       // of w[0] within the heads of the parameter
  View w;             // [n], updated
  View rounded = {};  // [n] bf16 = w; may be empty
  bool is_empty() const { return w.elements() == 0; }
  Cost cost() const { return Cost().updates(w).writes(rounded); }
};

}  // namespace sy::ops
