// Biases of linear layers: one for all rows, or one for each expert.
#pragma once

#include "kernels/ops/grouped_gemm.h"

namespace sy::ops {

// Adds the bias to each row.
struct BiasForward {
  static constexpr std::string_view name = "bias_forward";
  ConstView bias;  // [N] c
  View y;          // [T, N] c +=
  Cost cost() const { return Cost().reads(bias).updates(y); }
};

// dbias += the sum over rows of dy.
struct BiasBackward {
  static constexpr std::string_view name = "bias_backward";
  ConstView dy;  // [T, N] c
  View dbias;    // [N] +=
  bool is_empty() const { return dy.elements() == 0; }
  Cost cost() const { return Cost().reads(dy).updates(dbias); }
};

// Adds row_scale * bias_e to columns [first, first + n) of the rows of expert e.
struct GroupedBiasForward {
  static constexpr std::string_view name = "grouped_bias_forward";
  ConstView bias;            // [E, n] c
  ConstView row_scale = {};  // [R]; empty means 1
  GroupOffsets groups;
  Index first = 0;
  View y;  // [R, N] c +=
  bool is_empty() const { return y.dim(0) == 0 || bias.dim(1) == 0; }
  Cost cost() const { return Cost().reads(bias).updates(y); }
};

// Gradients of GroupedBiasForward with respect to bias and row_scale:
//   dbias_e += the sum over the rows of expert e of row_scale * dy
//   drow_scale += dy . bias_e
struct GroupedBiasBackward {
  static constexpr std::string_view name = "grouped_bias_backward";
  ConstView dy;              // [R, N] c
  ConstView bias;            // [E, n] c
  ConstView row_scale = {};  // [R]; empty means 1
  GroupOffsets groups;
  Index first = 0;
  View dbias;            // [E, n] +=
  View drow_scale = {};  // [R] +=; may be empty
  bool is_empty() const { return dy.dim(0) == 0 || bias.dim(1) == 0; }
  Cost cost() const { return Cost().reads(dy).updates(dbias); }
};

}  // namespace sy::ops
