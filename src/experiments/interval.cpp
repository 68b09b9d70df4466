#include "src/experiments/interval.h"

#include <algorithm>
#include <cmath>

namespace sy {

std::optional<MedianInterval> median_interval(std::vector<double> values, double confidence) {
  const std::size_t n = values.size();
  if (n < 2) return std::nullopt;
  std::sort(values.begin(), values.end());
  // `outside` is the probability that fewer than j values of n lie below the median.
  double probability = std::pow(0.5, static_cast<double>(n)), outside = probability;
  std::size_t j = 1;
  for (;;) {
    const double next = probability * static_cast<double>(n - j + 1) / static_cast<double>(j);
    if (2 * (j + 1) > n || 1 - 2 * (outside + next) < confidence) break;
    probability = next;
    outside += next;
    ++j;
  }
  return MedianInterval{values[j - 1], values[n - j], 1 - 2 * outside};
}

}  // namespace sy
