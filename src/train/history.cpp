#include "src/train/history.h"

#include <algorithm>
#include <cmath>

namespace sy {

void HistoryWindow::add(const StepResult& r) {
  if (steps_++ == 0) {
    const std::vector<Index> zeros(r.routed.empty() ? 0 : r.routed.front().size());
    routed_.assign(r.routed.size(), zeros);
    dropped_ = routed_;
    probability_.assign(r.routed.size(), std::vector<double>(zeros.size()));
  }
  const bool finite = std::ranges::all_of(r.probability, [](const std::vector<double>& layer) {
    return std::ranges::all_of(layer, [](double p) { return std::isfinite(p); });
  });
  if (finite) ++finite_steps_;
  for (std::size_t l = 0; l < routed_.size(); ++l)
    for (std::size_t e = 0; e < routed_[l].size(); ++e) {
      routed_[l][e] += r.routed[l][e];
      dropped_[l][e] += r.dropped[l][e];
      if (finite) probability_[l][e] += r.probability[l][e];
    }
}

void HistoryWindow::close(Index step, ExpertHistory& history) {
  if (steps_ == 0 || routed_.empty()) return;
  std::vector<std::int64_t> routed, dropped;
  std::vector<float> probability;
  for (std::size_t l = 0; l < routed_.size(); ++l) {
    routed.insert(routed.end(), routed_[l].begin(), routed_[l].end());
    dropped.insert(dropped.end(), dropped_[l].begin(), dropped_[l].end());
    for (double p : probability_[l]) probability.push_back(static_cast<float>(p / static_cast<double>(finite_steps_)));
  }
  history.append(step, routed, dropped, probability);
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

}  // namespace sy
