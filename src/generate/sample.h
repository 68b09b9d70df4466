// Choosing the next token.
#pragma once

#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// The rules apply in this order; what one leaves out, the next ones do not see.
struct SampleOptions {
  // Of the tokens that are there already (Keskar et al., "CTRL", 2019): positive logits are divided by it, negative ones
  // multiplied; 1: nothing.
  double repetition_penalty = 1;
  double temperature = 0.8;  // logits are divided by it; 0: always the most likely token
  Index top_k = 0;           // only the k most likely tokens; 0: all
  double top_p = 1;          // only the most likely tokens that together reach this probability (Holtzman et al., 2020)
  double min_p = 0;  // only tokens of at least this share of the most likely one's probability (Nguyen et al., 2024)
};

// u: uniform in [0, 1). seen: the tokens before this one. Ties go to the lower id. Throws Failure when no logit is a number.
std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options, double u,
                          std::span<const std::int32_t> seen = {});

}  // namespace sy
