#include "src/generate/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sy {

std::int32_t sample_token(const std::vector<float>& logits, const SampleOptions& options, double u) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](std::int32_t i) { return std::isnan(logits[i]); });
  if (order.empty()) fail("the model's logits are not numbers: the checkpoint comes from a run that diverged");
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
  if (options.temperature <= 0) return order[0];
  if (options.top_k > 0 && options.top_k < static_cast<Index>(order.size())) order.resize(options.top_k);

  std::vector<double> p;
  double sum = 0;
  for (std::int32_t i : order) {
    p.push_back(std::exp((static_cast<double>(logits[i]) - logits[order[0]]) / options.temperature));
    sum += p.back();
  }
  double kept = 0;
  std::size_t n = 0;
  while (n < p.size() && (n == 0 || kept < options.top_p * sum)) kept += p[n++];
  double at = u * kept;
  for (std::size_t i = 0; i < n; ++i)
    if ((at -= p[i]) < 0) return order[i];
  return order[n - 1];
}

}  // namespace sy
