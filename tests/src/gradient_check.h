// Comparison of gradients with differences of a loss in double precision.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// Expects that the derivative of loss() along `direction` is that of `gradient` (f32, on the host).
// The difference may be 2e-5 (|gradient| |direction| + least).
// values: the variables that loss() reads, as many as the gradient has; the same after the call
template <class Loss>
void expect_derivative(ConstView gradient, std::vector<double>& values, const std::vector<double>& direction,
                       const Loss& loss, double least, const std::string& what) {
  const std::vector<double> saved = values;
  double size = 0, analytic = 0, length = 0;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const double g = gradient.f32()[i];
    size += g * g;
    analytic += g * direction[i];
    length += direction[i] * direction[i];
  }
  const double h = 1e-5 / std::sqrt(length);
  double side[2];
  for (int s : {0, 1}) {
    for (std::size_t i = 0; i < saved.size(); ++i) values[i] = saved[i] + (s ? h : -h) * direction[i];
    side[s] = loss();
  }
  values = saved;
  const double numeric = (side[1] - side[0]) / (2 * h);
  EXPECT_NEAR(analytic, numeric, 2e-5 * (std::sqrt(size * length) + least)) << what;
}

}  // namespace sy
