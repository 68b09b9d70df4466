// Rotary position embedding (Su et al., "RoFormer: Enhanced Transformer with Rotary Position
// Embedding", 2021).
#pragma once

#include <string_view>

#include "kernels/ops/list.h"
#include "kernels/tensor.h"
#include "kernels/types.h"

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
};

}  // namespace sy::ops
