// Permutation of rows: tokens to the order of their experts, and back.
#pragma once

#include "kernels/ops/operation.h"

namespace sy::ops {

// y[r] = x[index[r]], or a range of its columns. If the index is -1, the row keeps its value.
struct Permute {
  static constexpr std::string_view name = "permute";
  ConstView x;             // [N, first_column + D or more] c or i32
  ConstView index;         // [n] i32
  Index first_column = 0;  // of the range
  View y;                  // [n, D] of the type of x
  Cost cost() const { return Cost().reads(index, y).writes(y); }
};
void run(Device& device, const Permute& op);

// y[t] = addend[t] + the sum over j, in order, of x[row_id_map[t, j]] if it is not -1. It is the
// adjoint of Permute, without atomics.
struct Unpermute {
  static constexpr std::string_view name = "unpermute";
  ConstView x;            // [R, D] c
  ConstView row_id_map;   // [T, k] i32
  ConstView addend = {};  // [T, D] c, or empty; it may be y
  View y;                 // [T, D] c
  Cost cost() const { return Cost().reads(x, row_id_map, addend).writes(y); }
};

}  // namespace sy::ops
