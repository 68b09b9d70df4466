// Softmax of the logits of one token, on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/check.h"

namespace sy {

// Throws the Failure of logits from which no probabilities follow.
[[noreturn]] inline void fail_without_probabilities() {
  fail("the model's logits are not numbers: the checkpoint comes from a run that diverged");
}

// The probability of a logit z is exp(z - largest) / sum.
struct SoftmaxSum {
  double largest, sum;
};
// Throws Failure if a logit is not a number, or if the largest is infinite. logits: at least one
inline SoftmaxSum softmax_sum(std::span<const float> logits) {
  const float largest = *std::ranges::max_element(logits);
  SoftmaxSum out{largest, 0};
  for (const float z : logits) out.sum += std::exp(static_cast<double>(z) - out.largest);
  if (!std::isfinite(largest) || std::isnan(out.sum)) fail_without_probabilities();
  return out;
}

}  // namespace sy
