#include "src/io/expert_history.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sy {

double max_over_mean(std::span<const Index> loads) {
  // In double: exact up to 2^53, and damaged counts cannot overflow it.
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (sum == 0) return 1;
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) * static_cast<double>(loads.size()) / sum;
}

Index ExpertHistory::bound() const {
  const Index window_bytes = std::max<Index>(1, layers * experts) * cell_bytes;
  return std::clamp<Index>(max_bytes / window_bytes, 8, max_windows);
}

void ExpertHistory::append(std::int64_t step, std::span<const std::int64_t> routed_now,
                           std::span<const std::int64_t> dropped_now, std::span<const float> probability_now) {
  if (windows() >= bound()) merge_older_half(*this);
  steps.push_back(step);
  routed.insert(routed.end(), routed_now.begin(), routed_now.end());
  dropped.insert(dropped.end(), dropped_now.begin(), dropped_now.end());
  probability.insert(probability.end(), probability_now.begin(), probability_now.end());
}

namespace {

// Returns the mean of two values with these weights. A value that is NaN does not count.
float weighted_mean(float a, double weight_a, float b, double weight_b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return static_cast<float>((weight_a * a + weight_b * b) / (weight_a + weight_b));
}

}  // namespace

void merge_older_half(ExpertHistory& h) {
  const Index row = h.layers * h.experts, pairs = h.windows() / 4;
  std::int64_t before_pair = 0;  // last step before the pair
  for (Index pair = 0; pair < pairs; ++pair) {
    const Index to = pair * row, a = 2 * pair * row, b = a + row;
    const std::int64_t middle = h.steps[2 * pair], last = h.steps[2 * pair + 1];
    const double steps_a = static_cast<double>(middle - before_pair), steps_b = static_cast<double>(last - middle);
    for (Index i = 0; i < row; ++i) {
      h.routed[to + i] = h.routed[a + i] + h.routed[b + i];
      h.dropped[to + i] = h.dropped[a + i] + h.dropped[b + i];
      h.probability[to + i] = weighted_mean(h.probability[a + i], steps_a, h.probability[b + i], steps_b);
    }
    h.steps[pair] = before_pair = last;
  }
  const auto close_gap = [&](auto& values, Index width) {
    values.erase(values.begin() + pairs * width, values.begin() + 2 * pairs * width);
  };
  close_gap(h.steps, 1);
  close_gap(h.routed, row);
  close_gap(h.dropped, row);
  close_gap(h.probability, row);
}

}  // namespace sy
