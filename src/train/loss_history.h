// Facts about a training that follow from its metrics.jsonl: steps without a line, rises of the
// loss, and skipped steps.
#pragma once

#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "dist/shard.h"

namespace sy {

// Collects the steps that have no line, as gaps. Steps start at 1.
class MissingSteps {
 public:
  // Adds a step that has a line. A step below an earlier one is ignored: it fills no gap.
  void add(Index step);
  // Ends the history at step `last`. Call it once, after the last add().
  void end(Index last) { add(last + 1); }
  bool empty() const { return gaps_.empty(); }
  Index longest() const;  // number of steps of the longest gap; 0 if there is none
  // Names the first six gaps: "steps 7 to 12, 20". Counts the others: "and those of 2 more gaps".
  std::string text() const;

 private:
  Index next_ = 1;
  std::vector<Range> gaps_;
};

// Detects a rise of the loss.
// The loss has risen if its mean over `window` steps exceeds `factor` times the smallest such mean.
// A mean that is not finite counts as a rise. The mean of a shorter history is over all its steps.
class LossRise {
 public:
  static constexpr Index window = 20;
  static constexpr double factor = 1.2;
  void add(Index step, double loss);
  Index begin() const { return begin_; }  // first step of the current rise; 0 if there is none
  double mean() const;
  double smallest() const { return smallest_; }

 private:
  std::deque<double> losses_;  // of the last `window` steps
  double smallest_ = std::numeric_limits<double>::infinity();
  Index begin_ = 0;
};

// The latest steps that train.spike_sigma skipped.
class RecentSkips {
 public:
  // Adds a step, which is greater than all before.
  void add(Index step);
  // Returns the skipped steps that are at most NormHistory::window steps before `now`, in order.
  std::vector<Index> at(Index now) const;

 private:
  std::deque<Index> steps_;  // none is more than NormHistory::window steps before the last one
};

}  // namespace sy
