// Formulas of xIELU and of its derivatives, for all devices (kernels/ops/activation.h).
//
// Math has the elementary functions of a device:
//   static float exp(float x);
#pragma once

#include <cmath>

#include "kernels/formulas/activation.h"

namespace sy::formulas {

// Value of xIELU at one point, its slope, and its derivatives with respect to both factors: of x^2
// above 0, and of e^x - 1 - x below 0.
struct XieluPoint {
  float value, slope, by_positive, by_negative;
};

template <class Math>
struct Xielu {
  // Softplus of a learned parameter. The factor above 0 is softplus(p).value, and the factor below
  // 0 is 0.5 + softplus(n).value.
  SY_HOST_DEVICE static Point softplus(float parameter) {
    const float e = expf(-fabsf(parameter));
    return {(parameter > 0 ? parameter : 0.0f) + log1pf(e), (parameter > 0 ? 1.0f : e) / (1 + e)};
  }
  // e^x - 1 - x for x <= 0. The truncated series has a relative error of 4.8e-8 at -1/2.
  SY_HOST_DEVICE static float curve(float x) {
    const float series =
        x * x *
        (0.5f + x * (1.66666667e-1f +
                     x * (4.16666667e-2f +
                          x * (8.33333333e-3f + x * (1.38888889e-3f + x * (1.98412698e-4f + x * 2.48015873e-5f))))));
    return x > -0.5f ? series : Math::exp(x) - 1 - x;
  }
  // Returns the point at x for both factors.
  SY_HOST_DEVICE static XieluPoint at(float x, float positive, float negative) {
    const bool above = x > 0;
    const float square = x * x, negative_curve = curve(above ? 0.0f : x);
    return {0.5f * x + (above ? positive * square : negative * negative_curve),
            0.5f + (above ? 2 * positive * x : negative * (negative_curve + x)), above ? square : 0.0f,
            above ? 0.0f : negative_curve};
  }
};

}  // namespace sy::formulas
