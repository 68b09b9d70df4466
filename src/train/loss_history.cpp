#include "src/train/loss_history.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/text/words.h"

namespace sy {

void MissingSteps::add(Index step) {
  constexpr Index most = Index{1} << 53;  // a damaged line may have any number
  if (step < next_ || step > most) return;
  if (step > next_) gaps_.push_back({next_, step});
  next_ = step + 1;
}

void MissingSteps::end(Index last) {
  add(last + 1);
}

Index MissingSteps::longest() const {
  Index longest = 0;
  for (const Range& gap : gaps_) longest = std::max(longest, gap.size());
  return longest;
}

std::string MissingSteps::text() const {
  constexpr std::size_t most = 6;
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < std::min(most, gaps_.size()); ++i) {
    const auto& [begin, end] = gaps_[i];
    parts.push_back(end == begin + 1 ? fmt::format("{}", begin) : fmt::format("{} to {}", begin, end - 1));
  }
  const bool one = gaps_.size() == 1 && gaps_[0].size() == 1;
  std::string text = (one ? "step " : "steps ") + join(parts, ", ");
  if (gaps_.size() > most) text += fmt::format(" and those of {} more gaps", gaps_.size() - most);
  return text;
}

double LossRise::mean() const {
  return std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(losses_.size());
}

void LossRise::add(Index step, double loss) {
  losses_.push_back(loss);
  if (std::ssize(losses_) > window) losses_.pop_front();
  const double now = mean();
  if (!std::isfinite(now) || now > factor * smallest_) {
    if (begin_ == 0) begin_ = step;
  } else {
    begin_ = 0;
    smallest_ = std::min(smallest_, now);
  }
}

}  // namespace sy
