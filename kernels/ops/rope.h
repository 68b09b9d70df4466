// Rotary position embedding (Su et al., "RoFormer: Enhanced Transformer with Rotary Position
// Embedding", 2021).
#pragma once

#include "kernels/ops/operation.h"

namespace sy::ops {

// Rotates, in place, the first `heads` heads of every token of x. The pairs lie in the first rot
// elements of a head.
//   (a, b) = (a cos - b sin, a sin + b cos)
struct Rope {
  static constexpr std::string_view name = "rope";
  View x;  // [T, all_heads, hd] c
  Index heads;
  ConstView positions;   // [T] i32 rows of the table
  ConstView table;       // [positions, rot/2, 2] = cos, sin
  bool inverse = false;  // rotates back, which is the gradient
  RopePairs pairs = RopePairs::half;
  bool is_empty() const { return x.elements() == 0 || heads == 0 || table.elements() == 0; }
  Cost cost() const;
};

}  // namespace sy::ops
