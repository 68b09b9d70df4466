// Formulas of the moments of batch norms (kernels/ops/batch_norm.h), for all devices.
#pragma once

#include "kernels/formulas/host_device.h"

namespace sy::formulas {

// Mean and biased variance of a column.
struct ColumnMoments {
  double mean, variance;
};

// Returns the moments of a column from its sum and its sum of squares. factor: 1 / number of
// elements, or 0 if there are none
SY_HOST_DEVICE inline ColumnMoments column_moments(double sum, double squares, double factor) {
  const double mean = sum * factor, variance = squares * factor - mean * mean;
  return {mean, variance > 0 ? variance : 0};
}

// Returns the unbiased variance of `count` elements, at least 2.
SY_HOST_DEVICE inline double unbiased_variance(const ColumnMoments& moments, double count) {
  return moments.variance * count / (count - 1);
}

// Returns a running average to which a value was added with the weight `momentum`.
SY_HOST_DEVICE inline float running_average(float average, double value, double momentum) {
  return static_cast<float>((1 - momentum) * static_cast<double>(average) + momentum * value);
}

}  // namespace sy::formulas
