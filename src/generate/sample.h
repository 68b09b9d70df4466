// Choosing the next token.
#pragma once

#include <vector>

#include "kernels/tensor.h"

namespace sy {

struct SampleOptions {
  double temperature = 0.8;  // 0: always the most likely token
  Index top_k = 0;           // only the k most likely tokens; 0: all
  double top_p = 1;          // only the most likely tokens that together reach this probability
};

// u: uniform in [0, 1). Ties go to the lower id. Throws Failure when no logit is a number.
std::int32_t sample_token(const std::vector<float>& logits, const SampleOptions& options, double u);

}  // namespace sy
