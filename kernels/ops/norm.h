// Norms of rows: RMSNorm (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019) and
// LayerNorm (Ba et al., "Layer Normalization", 2016).
//   y = (x - mean) / sqrt(mean of (x - mean)^2 + eps) * (offset + weight) + bias
// RMSNorm subtracts no mean.
#pragma once

#include "kernels/ops/operation.h"

namespace sy {

struct NormDesc {
  NormKind kind = NormKind::rmsnorm;
  float eps = 1e-5f;
  // Added to the weight: 1 if the weight is stored as w - 1 (Gemma team, "Gemma", 2024).
  float offset = 0;
};

namespace ops {

struct NormForward {
  static constexpr std::string_view name = "norm_forward";
  ConstView x;          // [T, D] c
  ConstView weight;     // [D] c
  ConstView bias = {};  // [D] c, or empty
  NormDesc desc = {};
  View y;        // [T, D] c
  View moments;  // [T, 2] = mean (RMSNorm: 0), 1 / sqrt(mean of (x - mean)^2 + eps)
  auto zero_if_empty() const { return std::array{moments}; }
  Cost cost() const { return Cost().reads(x, weight).writes(y, moments); }
};

// Gradients of NormForward with respect to x, weight and bias.
struct NormBackward {
  static constexpr std::string_view name = "norm_backward";
  ConstView dy;       // [T, D] c
  ConstView x;        // [T, D] c
  ConstView weight;   // [D] c
  ConstView moments;  // [T, 2] of NormForward
  NormDesc desc = {};
  View dx;          // [T, D] c +=
  View dweight;     // [D] +=
  View dbias = {};  // [D] +=; empty if there is no bias
  Cost cost() const { return Cost().reads(dy, x, weight, moments).updates(dx, dweight); }
};

}  // namespace ops

}  // namespace sy
