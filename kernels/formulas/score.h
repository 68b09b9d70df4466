// Formulas of the scores of a router, and of their derivatives, for all devices.
//
// Math has the elementary functions of a device:
//   static float sigmoid(float z);
//   static float softplus(float z);  // log(1 + e^z)
//   static float sqrt(float x);
//   static float max(float a, float b);
#pragma once

#include <limits>

#include "kernels/formulas/host_device.h"
#include "kernels/types.h"

namespace sy::formulas {

// Added to a sum of scores, which is a divisor, because sigmoid scores may all be 0.
constexpr float min_score_sum = 1e-20f;

// Score of a logit z with probability p.
template <class Math>
SY_HOST_DEVICE float score_of(Score score, float z, float p) {
  switch (score) {
    case Score::softmax:
      return p;
    case Score::sigmoid:
      return Math::sigmoid(z);
    case Score::sqrt_softplus:
      return Math::sqrt(Math::softplus(z));
  }
  return p;
}

// d log s / dz of a logit's score s, without the gradient through the softmax.
template <class Math>
SY_HOST_DEVICE float log_slope(Score score, float z, float s) {
  switch (score) {
    case Score::softmax:
      return 1;
    case Score::sigmoid:
      return 1 - s;
    case Score::sqrt_softplus:
      return 0.5f * Math::sigmoid(z) / Math::max(Math::softplus(z), std::numeric_limits<float>::min());
  }
  return 1;
}

}  // namespace sy::formulas
