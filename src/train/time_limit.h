// The wall-clock limit of a run (run.max_hours).
#pragma once

#include <algorithm>

namespace sy {

// Decides after each step whether a run must stop, so that its last checkpoint is complete in time.
// Times are in seconds.
class TimeLimit {
 public:
  // `hours` since the start of the program; 0 means unlimited.
  explicit TimeLimit(double hours) : limit_(3600 * hours) {}

  // Record the duration of a step, with its validation, and of a save.
  void add_step(double seconds) { longest_step_ = std::max(longest_step_, seconds); }
  void add_save(double seconds) { longest_save_ = std::max(longest_save_, seconds); }

  // Returns true if the time left is at most the reserve. Always false if the limit is 0.
  // The reserve is 2 * (longest step + longest save so far) + 2 % of the limit. The 2 % cover the
  // first save and the end of the program.
  // elapsed: time since the start of the program.
  bool must_stop(double elapsed) const {
    return limit_ > 0 && elapsed + 2 * (longest_step_ + longest_save_) + 0.02 * limit_ >= limit_;
  }

 private:
  double limit_, longest_step_ = 0, longest_save_ = 0;
};

}  // namespace sy
