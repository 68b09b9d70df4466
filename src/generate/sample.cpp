#include "src/generate/sample.h"

#include <algorithm>
#include <cmath>

#include "src/model/softmax_sum.h"

namespace sy {

std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options, double u,
                          std::span<const std::int32_t> seen) {
  std::vector<double> score(logits.begin(), logits.end());
  if (options.repetition_penalty != 1)
    for (const std::int32_t id : seen) {  // from the logit, so that a repeated token counts once
      const double logit = static_cast<double>(logits[static_cast<std::size_t>(id)]);
      score[static_cast<std::size_t>(id)] =
          logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    }
  std::vector<std::int32_t> heap;
  for (std::size_t i = 0; i < score.size(); ++i)
    if (!std::isnan(score[i])) heap.push_back(static_cast<std::int32_t>(i));
  const auto of = [&](std::int32_t id) { return score[static_cast<std::size_t>(id)]; };
  const auto less = [&](std::int32_t a, std::int32_t b) { return of(a) < of(b) || (of(a) == of(b) && a > b); };
  const auto largest = std::max_element(heap.begin(), heap.end(), less);
  if (largest == heap.end() || !std::isfinite(of(*largest))) fail_without_probabilities();
  const std::int32_t best = *largest;
  if (options.temperature <= 0) return best;

  // Tokens leave the heap by falling probability, and only as many as are needed.
  struct Candidate {
    std::int32_t id;
    double weight;  // probability / probability of the best token
  };
  std::make_heap(heap.begin(), heap.end(), less);
  const auto weight = [&](std::int32_t id) { return std::exp((of(id) - of(best)) / options.temperature); };
  const auto next = [&] {
    std::pop_heap(heap.begin(), heap.end(), less);
    const std::int32_t id = heap.back();
    heap.pop_back();
    return Candidate{id, weight(id)};
  };
  std::vector<Candidate> choices;
  double sum = 0;  // sum of all weights that top_k leaves
  if (options.top_k > 0 && options.top_k < std::ssize(heap)) {
    while (std::ssize(choices) < options.top_k) sum += choices.emplace_back(next()).weight;
    heap.clear();
  } else {
    for (const std::int32_t id : heap) sum += weight(id);
  }
  // Returns choice i of the tokens that top_k leaves; nullptr after the last one.
  const auto choice = [&](std::size_t i) -> const Candidate* {
    if (i == choices.size() && !heap.empty()) choices.push_back(next());
    return i < choices.size() ? &choices[i] : nullptr;
  };
  double remaining_weight = sum;
  // Index of the least likely token that is left; no limit if no rule applies.
  std::size_t last = static_cast<std::size_t>(-1);
  if (options.top_p < 1 || options.min_p > 0) {
    remaining_weight = 0;
    std::size_t n = 0;
    for (const Candidate* c = choice(0);
         c && (n == 0 || (remaining_weight < options.top_p * sum && c->weight >= options.min_p)); c = choice(++n))
      remaining_weight += c->weight;
    last = n - 1;
  }
  double target = u * remaining_weight;
  std::int32_t chosen = best;
  for (std::size_t i = 0; i <= last; ++i) {
    const Candidate* const c = choice(i);
    if (!c) break;  // rounding of the sum
    chosen = c->id;
    if ((target -= c->weight) < 0) break;
  }
  return chosen;
}

}  // namespace sy
