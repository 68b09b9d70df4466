// Reference of batch normalisation (numbers.h), with the variance as the mean of squared
// differences.
#pragma once

#include <cmath>

#include "src/numerics/reference/numbers.h"

namespace sy::reference {

// Mean and biased variance of each of the d columns of x over the real tokens, and their number.
struct ColumnMoments {
  Numbers mean, variance;  // [d]
  double count = 0;
};

// mask: [t], 0 for padding; empty: all tokens are real
inline ColumnMoments column_moments(Index t, Index d, const Numbers& x, const Numbers& mask) {
  ColumnMoments m{Numbers(static_cast<std::size_t>(d)), Numbers(static_cast<std::size_t>(d))};
  const auto is_real = [&](Index r) { return mask.empty() || mask[r] != 0; };
  for (Index r = 0; r < t; ++r) m.count += is_real(r);
  for (Index i = 0; i < d && m.count > 0; ++i) {
    for (Index r = 0; r < t; ++r)
      if (is_real(r)) m.mean[i] += x[r * d + i] / m.count;
    for (Index r = 0; r < t; ++r)
      if (is_real(r)) m.variance[i] += (x[r * d + i] - m.mean[i]) * (x[r * d + i] - m.mean[i]) / m.count;
  }
  return m;
}

// Operand `moments` of the operations: [2 d + 1].
inline Numbers norm_moments(const ColumnMoments& m, double eps) {
  Numbers out = m.mean;
  for (const double variance : m.variance) out.push_back(1 / std::sqrt(variance + eps));
  out.push_back(m.count > 0 ? 1 / m.count : 0);
  return out;
}

// y: [t, d] of these moments. bias: [d] or empty
inline Numbers batch_norm(const ColumnMoments& m, double eps, const Numbers& x, const Numbers& weight,
                          const Numbers& bias) {
  Numbers y(x.size());
  for (std::size_t i = 0, d = m.mean.size(); i < x.size(); ++i) {
    const std::size_t column = i % d;
    y[i] = (x[i] - m.mean[column]) / std::sqrt(m.variance[column] + eps) * weight[column] +
           (bias.empty() ? 0 : bias[column]);
  }
  return y;
}

}  // namespace sy::reference
