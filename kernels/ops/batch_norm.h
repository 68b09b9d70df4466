// Batch normalisation (Ioffe and Szegedy, "Batch Normalization", 2015): each of the D columns of x
// is normalised by its mean and variance over the real tokens of all ranks.
//   y = (x - mean) / sqrt(variance + eps) * weight + bias
// The ranks sum BatchNormSums before BatchNormMoments, and BatchNormGradientSums before
// BatchNormBackward. Evaluation reads running averages of mean and variance instead.
#pragma once

#include "kernels/ops/operation.h"

namespace sy::ops {

// Sums of the columns over real tokens.
struct BatchNormSums {
  static constexpr std::string_view name = "batch_norm_sums";
  ConstView x;          // [T, D] c
  ConstView mask = {};  // [T] i32: 0 if the token is padding; empty if all are real
  View sums;            // [2 * D + 1] f64 = sums of x, sums of x^2, number of real tokens
  auto zero_if_empty() const { return std::array{sums}; }
  Cost cost() const { return Cost().reads(x, mask).writes(sums); }
};

// Moments of the columns, from sums or from running averages.
struct BatchNormMoments {
  static constexpr std::string_view name = "batch_norm_moments";
  ConstView sums = {};  // [2 * D + 1] f64 of all ranks; empty: the moments are those of `averages`
  float eps = 1e-5f;
  // Weight of this batch in the averages.
  float momentum = 0.1f;
  // [2, D] running averages of the mean and of the unbiased variance. They are updated if there are
  // sums of at least 2 real tokens. May be empty if there are sums.
  View averages = {};
  // [2 * D + 1] = mean, 1 / sqrt(variance + eps), 1 / number of real tokens. The last one is 0 for
  // moments of averages, and without real tokens.
  View moments;
  bool is_empty() const { return moments.elements() == 0; }
  Cost cost() const { return Cost().reads(sums).updates(averages).writes(moments); }
};

struct BatchNormForward {
  static constexpr std::string_view name = "batch_norm_forward";
  ConstView x;          // [T, D] c
  ConstView weight;     // [D] c
  ConstView bias = {};  // [D] c, or empty
  ConstView moments;    // [2 * D + 1] of BatchNormMoments
  View y;               // [T, D] c
  Cost cost() const { return Cost().reads(x, weight, moments).writes(y); }
};

// Gradients of BatchNormForward with respect to weight and bias. Their sums over this rank's tokens
// are also those that the gradient with respect to x needs.
struct BatchNormGradientSums {
  static constexpr std::string_view name = "batch_norm_gradient_sums";
  ConstView dy;       // [T, D] c
  ConstView x;        // [T, D] c
  ConstView moments;  // [2 * D + 1] of BatchNormMoments
  View dweight;       // [D] += sums of dy * n, where n = (x - mean) / sqrt(variance + eps)
  View dbias = {};    // [D] += sums of dy; empty if there is no bias
  View sums;          // [2, D] f64 = sums of dy, sums of dy * n
  auto zero_if_empty() const { return std::array{sums}; }
  Cost cost() const { return Cost().reads(dy, x, moments).updates(dweight, dbias).writes(sums); }
};

// Gradient of BatchNormForward with respect to x. Mean and variance depend on real tokens alone:
//   dx += weight / sqrt(variance + eps) * (dy - (sum of dy + n * sum of dy * n) / count)
// The second term is 0 for padding, and for moments of averages.
struct BatchNormBackward {
  static constexpr std::string_view name = "batch_norm_backward";
  ConstView dy;         // [T, D] c
  ConstView x;          // [T, D] c
  ConstView weight;     // [D] c
  ConstView moments;    // [2 * D + 1] of BatchNormMoments
  ConstView sums;       // [2, D] f64 of BatchNormGradientSums, of all ranks
  ConstView mask = {};  // [T] i32 of BatchNormSums
  View dx;              // [T, D] c +=
  Cost cost() const { return Cost().reads(dy, x, weight, moments, sums, mask).updates(dx); }
};

}  // namespace sy::ops
