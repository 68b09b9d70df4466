// Linear layers of an FFN fused with its activation. A device may apply the activation to a tile
// of the product while a cache holds it.
#pragma once

#include "kernels/ops/grouped_gemm.h"

namespace sy::ops {

// h = x w^T + bias, y = the activation of h (ops::ActivationForward).
struct FfnForward {
  static constexpr std::string_view name = "ffn_forward";
  GatheredRows x;       // [R, D] c
  Weight w;             // [E, gated ? 2F : F, D] c. If `groups` is empty: no dimension E.
  ConstView bias = {};  // [E, gated ? 2F : F] c, or empty. If `groups` is empty: no dimension E.
  // Rows of each matrix of w; empty: w is one matrix for all rows
  GroupOffsets groups = {};
  ConstView row_scale = {};  // [R]; empty means 1
  FfnActivation activation = {};
  View h;  // [R, gated ? 2F : F] c
  View y;  // [R, F] c
  Cost cost() const;
};
void run(Device& device, const FfnForward& op);

// Backward of out = y w^T and of the activation: dh, drow_scale = ops::ActivationBackward of
// dout w. It also writes y again, as forward computed it.
struct FfnBackward {
  static constexpr std::string_view name = "ffn_backward";
  GatheredRows dout;         // [R, D] c
  Weight w;                  // [E, D, F] c. If `groups` is empty: no dimension E.
  GroupOffsets groups = {};  // see FfnForward
  ConstView h;               // [R, gated ? 2F : F] c of FfnForward
  ConstView row_scale = {};  // [R]; empty means 1
  FfnActivation activation = {};
  View dh;               // [R, gated ? 2F : F] c
  View drow_scale = {};  // [R]; may be empty
  View y;                // [R, F] c
  Cost cost() const;
};
void run(Device& device, const FfnBackward& op);

// Runs one operation after the other: GEMM, bias, activation. It is the kernel of devices without
// a fused one.
void run_unfused(Device& device, const FfnForward& op);
void run_unfused(Device& device, const FfnBackward& op);

}  // namespace sy::ops
