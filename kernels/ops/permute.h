// Permutation of rows: tokens to the order of their experts, and back.
#pragma once

#include <string_view>

#include "kernels/ops/list.h"
#include "kernels/tensor.h"

namespace sy::ops {

// y[r] = x[index[r]]. If the index is -1, the row keeps its value.
struct Permute {
  static constexpr std::string_view name = "permute";
  ConstView x;      // [N, D] c or i32
  ConstView index;  // [n] i32
  View y;           // [n, D] of the type of x
};

// y[t] = addend[t] + the sum over j, in order, of x[row_id_map[t, j]] if it is not -1. It is the
// adjoint of Permute, without atomics.
struct Unpermute {
  static constexpr std::string_view name = "unpermute";
  ConstView x;            // [R, D] c
  ConstView row_id_map;   // [T, k] i32
  ConstView addend = {};  // [T, D] c, or empty; it may be y
  View y;                 // [T, D] c
};

}  // namespace sy::ops
