// The largest of the logits of one token, for softmax and sampling on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/check.h"

namespace sy {

// Throws Failure if a logit is not a number, or if the largest is infinite: no probabilities follow
// from them. logits: at least one
inline float largest_logit(std::span<const float> logits) {
  const float largest = *std::ranges::max_element(logits);
  if (!std::isfinite(largest) || std::ranges::any_of(logits, [](float z) { return std::isnan(z); }))
    fail("the model's logits are not numbers: the checkpoint comes from a run that diverged");
  return largest;
}

}  // namespace sy
