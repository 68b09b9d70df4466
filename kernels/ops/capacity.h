// Capacity of experts: assignments beyond it are dropped.
#pragma once

#include "kernels/ops/operation.h"

namespace sy {

struct CapacityDesc {
  DropOrder order = DropOrder::token;
  // Largest number of assignments of an expert in one segment; 0 means unlimited.
  Index capacity = 0;
};

namespace ops {

// An element of dispatch_mask is 0 if the expert is full and the assignment is dropped, otherwise
// 1. An expert accepts assignments of a segment in this order:
//   * token: all choices of a token before those of the next token
//   * choice: all first choices, then all second choices
//   * probability: falling weight; ties: lower token, then lower choice
// Padding, whose experts are -1, takes no capacity. Its elements of dispatch_mask are undefined.
struct ApplyCapacity {
  static constexpr std::string_view name = "apply_capacity";
  ConstView experts;  // [T, k] i32 of RouteForward: distinct for each token, or -1
  ConstView weights;  // [T, k]
  Index segments = 1;
  Index num_experts;
  CapacityDesc desc = {};
  View dispatch_mask;  // [T, k] i32
  bool is_empty() const { return experts.elements() == 0; }
  Cost cost() const { return Cost().reads(experts, weights).writes(dispatch_mask); }
};

}  // namespace ops

}  // namespace sy
