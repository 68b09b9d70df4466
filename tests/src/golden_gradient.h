// Parameters and gradients that golden data describe (tests/golden/values.py).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "src/params/store.h"
#include "tests/src/golden_values.h"

namespace sy {

inline bool is_around_one(const ParamSpec& spec) {
  return spec.init.kind == InitKind::ones;
}

inline void set_golden_values(ParamStore& store) {
  for (const ParamSpec& spec : store.specs()) {
    const View w = store.get(spec.name).weight;
    for (Index i = 0; i < w.elements(); ++i)
      w.f32()[i] = golden_value(spec.name, static_cast<std::uint32_t>(i), is_around_one(spec));
  }
}

// Bounds of the differences: relative to the norm of the gradient, and absolute.
struct GradientBounds {
  double relative, product = 1e-7, norm = 0;
};
// want: product of the gradient with a direction that follows from the name, and its norm
inline void expect_golden_gradient(const std::string& name, std::span<const float> gradient,
                                   const std::vector<double>& want, bool around_one, const GradientBounds& bounds) {
  double product = 0, squares = 0, length = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i], d = golden_value("direction " + name, static_cast<std::uint32_t>(i), around_one);
    product += g * d;
    squares += g * g;
    length += d * d;
  }
  EXPECT_NEAR(product, want[0], bounds.relative * want[1] * std::sqrt(length) + bounds.product) << name;
  EXPECT_NEAR(std::sqrt(squares), want[1], bounds.relative * want[1] + bounds.norm) << name;
}

}  // namespace sy
