#include "src/train/history.h"

namespace sy {

void HistoryWindow::add(const StepResult& r) {
  if (steps_++ == 0) {
    routed_ = r.routed;
    dropped_ = r.dropped;
    probability_ = r.probability;
    return;
  }
  for (std::size_t l = 0; l < routed_.size(); ++l)
    for (std::size_t e = 0; e < routed_[l].size(); ++e) {
      routed_[l][e] += r.routed[l][e];
      dropped_[l][e] += r.dropped[l][e];
      probability_[l][e] += r.probability[l][e];
    }
}

void HistoryWindow::close(Index step, ExpertHistory& history) {
  if (steps_ == 0 || routed_.empty()) return;
  if (history.windows() >= max_windows) merge_older_half(history);
  history.steps.push_back(step);
  for (std::size_t l = 0; l < routed_.size(); ++l)
    for (std::size_t e = 0; e < routed_[l].size(); ++e) {
      history.routed.push_back(routed_[l][e]);
      history.dropped.push_back(dropped_[l][e]);
      history.probability.push_back(static_cast<float>(probability_[l][e] / static_cast<double>(steps_)));
    }
  *this = {};
}

ExpertCounts counts_since(Index step, const ExpertHistory& h) {
  ExpertCounts c;
  if (h.layers == 0) return c;
  c.routed.assign(h.layers, std::vector<Index>(h.experts));
  c.dropped = c.routed;
  for (Index w = h.windows(); w-- > 0 && h.steps[w] > step;)
    for (Index l = 0; l < h.layers; ++l)
      for (Index e = 0; e < h.experts; ++e) {
        c.routed[l][e] += h.routed[(w * h.layers + l) * h.experts + e];
        c.dropped[l][e] += h.dropped[(w * h.layers + l) * h.experts + e];
      }
  return c;
}

void merge_older_half(ExpertHistory& h) {
  const Index row = h.layers * h.experts, pairs = h.windows() / 4, windows = h.windows();
  const auto steps_of = [&](Index w) { return static_cast<double>(h.steps[w] - (w > 0 ? h.steps[w - 1] : 0)); };
  ExpertHistory merged;
  merged.layers = h.layers;
  merged.experts = h.experts;
  merged.layer_ids = h.layer_ids;
  for (Index w = 0; w < windows; ++w) {
    const bool second = w < 2 * pairs && w % 2 == 1;
    if (!second) merged.steps.push_back(0);
    merged.steps.back() = h.steps[w];
    const Index at = (static_cast<Index>(merged.steps.size()) - 1) * row;
    for (Index i = 0; i < row; ++i) {
      if (!second) {
        merged.routed.push_back(h.routed[w * row + i]);
        merged.dropped.push_back(h.dropped[w * row + i]);
        merged.probability.push_back(h.probability[w * row + i]);
        continue;
      }
      merged.routed[at + i] += h.routed[w * row + i];
      merged.dropped[at + i] += h.dropped[w * row + i];
      const double before = steps_of(w - 1), now = steps_of(w);
      merged.probability[at + i] =
          static_cast<float>((before * merged.probability[at + i] + now * h.probability[w * row + i]) / (before + now));
    }
  }
  h = std::move(merged);
}

}  // namespace sy
