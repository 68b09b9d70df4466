#include "src/train/loss_history.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/io/norm_history.h"
#include "src/text/strings.h"

namespace sy {

void MissingSteps::add(Index step) {
  constexpr Index limit = Index{1} << 53;  // a damaged line may have any number
  if (step < next_ || step > limit) return;
  if (step > next_) gaps_.push_back({next_, step});
  next_ = step + 1;
}

Index MissingSteps::longest() const {
  Index longest = 0;
  for (const Range& gap : gaps_) longest = std::max(longest, gap.size());
  return longest;
}

std::string MissingSteps::text() const {
  constexpr std::size_t limit = 6;
  std::vector<std::string> gap_texts;
  for (std::size_t i = 0; i < std::min(limit, gaps_.size()); ++i) {
    const auto& [begin, end] = gaps_[i];
    gap_texts.push_back(end == begin + 1 ? fmt::format("{}", begin) : fmt::format("{} to {}", begin, end - 1));
  }
  const bool one = gaps_.size() == 1 && gaps_[0].size() == 1;
  std::string text = (one ? "step " : "steps ") + join(gap_texts, ", ");
  if (gaps_.size() > limit) text += fmt::format(" and those of {} more gaps", gaps_.size() - limit);
  return text;
}

double LossRise::mean() const {
  return std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(losses_.size());
}

void LossRise::add(Index step, double loss) {
  losses_.push_back(loss);
  if (std::ssize(losses_) > window) losses_.pop_front();
  const double current = mean();
  if (!std::isfinite(current) || current > factor * smallest_) {
    if (begin_ == 0) begin_ = step;
  } else {
    begin_ = 0;
    smallest_ = std::min(smallest_, current);
  }
}

void RecentSkips::add(Index step) {
  steps_.push_back(step);
  while (step - steps_.front() > NormHistory::window) steps_.pop_front();
}

std::vector<Index> RecentSkips::at(Index now) const {
  std::vector<Index> recent;
  for (const Index step : steps_)
    if (now - step <= NormHistory::window) recent.push_back(step);
  return recent;
}

}  // namespace sy
