// Facts about a training that follow from the lines of its metrics.jsonl: which steps have none,
// and whether the loss has risen.
#pragma once

#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "dist/shard.h"

namespace sy {

// The steps that have no line. Steps are added in rising order; others are ignored.
class MissingSteps {
 public:
  void add(Index step);
  // Every step up to `last` should have had a line.
  void end(Index last);
  bool empty() const { return gaps_.empty(); }
  Index longest() const;     // the length of the longest gap
  std::string text() const;  // "steps 7 to 12 and 20"

 private:
  Index next_ = 1;
  std::vector<Range> gaps_;
};

// Whether the loss has risen: its mean over the last `window` steps is above `factor` times the
// smallest such mean so far, or is not finite. At the start of a history the mean is over the steps
// that there are.
class LossRise {
 public:
  static constexpr Index window = 20;
  static constexpr double factor = 1.2;
  void add(Index step, double loss);
  Index begin() const { return begin_; }  // the first step of the present rise; 0: there is none
  double mean() const;
  double smallest() const { return smallest_; }

 private:
  std::deque<double> losses_;  // of the last steps
  double smallest_ = std::numeric_limits<double>::infinity();
  Index begin_ = 0;
};

}  // namespace sy
