// Sampling of the next token.
#pragma once

#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// Sampling rules, in the order in which they apply. A later rule does not see the tokens that an
// earlier one excludes.
struct SampleOptions {
  // Penalty for tokens that are already in the text (Keskar et al., "CTRL", 2019): positive logits
  // are divided by it, negative ones multiplied. 1 means no penalty.
  double repetition_penalty = 1;
  double temperature = 0.8;  // divisor of the logits; 0 means always the most likely token
  Index top_k = 0;           // only the k most likely tokens; 0 means all
  // Only the most likely tokens that together reach this probability (Holtzman et al., 2020).
  double top_p = 1;
  // Only tokens of at least this share of the highest probability (Nguyen et al., 2024).
  double min_p = 0;
};

// Samples a token. Ties go to the lower id. u: uniform in [0, 1). seen: the tokens of the text so
// far. Logits that are NaN are never sampled. Throws Failure if the largest is not finite.
std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options, double u,
                          std::span<const std::int32_t> seen = {});

}  // namespace sy
