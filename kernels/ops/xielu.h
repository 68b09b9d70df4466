// xIELU, an activation with two learned parameters p and n (Huang and Schlag, "Deriving Activation
// Functions Using Integration", 2024):
//   y = a x^2 + x / 2,            a = softplus(p),        if x > 0
//   y = b (e^x - 1 - x) + x / 2,  b = 1/2 + softplus(n),  if x <= 0
#pragma once

#include "kernels/ops/operation.h"

namespace sy::ops {

struct XieluForward {
  static constexpr std::string_view name = "xielu_forward";
  ConstView h;           // [R, F] c
  ConstView parameters;  // [2] = p, n
  View y;                // [R, F] c
  Cost cost() const { return Cost().reads(h).writes(y); }
};

// Gradients of XieluForward with respect to h and, row by row, to the parameters.
struct XieluBackward {
  static constexpr std::string_view name = "xielu_backward";
  ConstView dy;           // [R, F] c
  ConstView h;            // [R, F] c
  ConstView parameters;   // [2] = p, n
  View dh;                // [R, F] c
  View dparameters = {};  // [R, 2]; their sum over rows is the gradient; may be empty
  bool is_empty() const { return dy.elements() == 0; }
  auto zero_if_empty() const { return std::array{dparameters}; }
  Cost cost() const { return Cost().reads(dy, h).writes(dh, dparameters); }
};

}  // namespace sy::ops
