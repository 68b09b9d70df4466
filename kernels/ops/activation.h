// Activations of feed-forward layers, gated (Shazeer, "GLU Variants Improve Transformer", 2020) or
// not. FfnActivation says which one, and its settings.
//   not gated: y = row_scale * act(h)
//   gated:     y = row_scale * act(h[:, :F]) * h[:, F:], the up projection
#pragma once

#include "kernels/ops/operation.h"

namespace sy::ops {

struct ActivationForward {
  static constexpr std::string_view name = "activation_forward";
  ConstView h;               // [R, gated ? 2F : F] c
  ConstView row_scale = {};  // [R]; empty means 1
  FfnActivation activation = {};
  View y;  // [R, F] c
  Cost cost() const { return Cost().reads(h).writes(y); }
};

// Gradients of ActivationForward with respect to h and row_scale. It may also write the activation
// again, with the bits of ActivationForward: the gradient of the next GEMM's weight needs it.
struct ActivationBackward {
  static constexpr std::string_view name = "activation_backward";
  ConstView dy;              // [R, F] c
  ConstView h;               // [R, gated ? 2F : F] c
  ConstView row_scale = {};  // [R]; empty means 1
  FfnActivation activation = {};
  View dh;               // [R, gated ? 2F : F] c
  View drow_scale = {};  // [R]; may be empty
  View y = {};           // [R, F] c of ActivationForward; may be empty, and may be dy
  bool is_empty() const { return dy.elements() == 0; }
  auto zero_if_empty() const { return std::array{drow_scale}; }
  Cost cost() const { return Cost().reads(dy, h).writes(dh, drow_scale, y); }
};

// xIELU, an activation with two learned parameters p and n (Huang and Schlag, "Deriving Activation
// Functions Using Integration", 2024):
//   y = a x^2 + x / 2,            a = softplus(p),        if x > 0
//   y = b (e^x - 1 - x) + x / 2,  b = 1/2 + softplus(n),  if x <= 0
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
