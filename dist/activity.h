// What this process is doing: in words, for the message of a collective that fails or hangs, with times, for the trace of a step,
// and as ranges, for a profiler.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <utility>
#include <vector>

#include "kernels/ranges.h"
#include "kernels/tensor.h"
#include "kernels/waiting.h"

namespace sy {

struct Activity {
  const char* what = "";
  Index layer = -1;
  const char* part = "";  // of what is done: "dispatch"
  Index step = 0;         // of training, from 1 on; 0: of none
  // " in the dispatch of the forward pass of layer 2, step 7"; empty where there is nothing to say.
  std::string where() const {
    const std::string number = step > 0 ? fmt::format("step {}", step) : "";
    if (!*what) return step > 0 ? " in " + number : "";
    return fmt::format(" in the {}{}{}{}{}{}", part, *part ? " of the " : "", what,
                       layer < 0 ? "" : fmt::format(" of layer {}", layer), step > 0 ? ", " : "", number);
  }
};
inline Activity activity;                     // of the one thread that computes
inline Seqlock<Activity> published_activity;  // the same, for other threads

// Counts the chunks of files that this process has read or written. The watchdog sees by it that the
// rank's own work goes on.
inline std::atomic<std::uint64_t> local_progress{0};

inline Activity set_activity(const Activity& next) {
  published_activity.write(next);
  return std::exchange(activity, next);
}

class ScopedActivity {
 public:
  explicit ScopedActivity(const Activity& next) : before_(set_activity(next)) {}
  ~ScopedActivity() { set_activity(before_); }
  ScopedActivity(const ScopedActivity&) = delete;
  ScopedActivity& operator=(const ScopedActivity&) = delete;

 private:
  Activity before_;
};

// A part of a step, from when the host began it to when it was done with it. On a GPU the work itself may come later.
struct TraceSpan {
  using Number = std::pair<const char*, Index>;  // such as {"rows", 128}
  const char* what;
  Index layer;                                         // -1: of none
  std::chrono::steady_clock::time_point begin, end{};  // no end: it has not come yet
  std::array<Number, 4> numbers{};                     // those without a name are none
};
// The spans of the steps that are traced, in the order in which they began. Where there is none, nothing is recorded.
inline std::vector<TraceSpan>* trace = nullptr;

// A span, and a range, until the end of the scope. Its layer is that of the activity around it.
class Traced {
 public:
  using Numbers = std::initializer_list<TraceSpan::Number>;
  explicit Traced(const char* what, Numbers numbers = {}) { begin(what, numbers); }
  ~Traced() { end(); }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

  // Ends this span, and begins the next part.
  void next(const char* what, Numbers numbers = {}) {
    end();
    begin(what, numbers);
  }
  void add(Numbers numbers) {
    if (!here_) return;
    auto& all = (*here_)[at_].numbers;
    std::size_t n = 0;
    while (n < all.size() && all[n].first) ++n;
    for (const TraceSpan::Number& number : numbers)
      if (n < all.size()) all[n++] = number;
  }

 private:
  void begin(const char* what, Numbers numbers) {
    begin_range(what, activity.layer);
    here_ = trace;
    if (!here_) return;
    at_ = here_->size();
    here_->push_back({what, activity.layer, std::chrono::steady_clock::now()});
    add(numbers);
  }
  void end() {
    if (here_) (*here_)[at_].end = std::chrono::steady_clock::now();
    end_range();
  }

  std::vector<TraceSpan>* here_ = nullptr;
  std::size_t at_ = 0;
};

// What this process does until the end of the scope.
class Doing {
 public:
  explicit Doing(const char* what, Index layer = -1) : activity_({what, layer, "", activity.step}), span_(what) {}

 private:
  ScopedActivity activity_;
  Traced span_;
};

// A part of what is done already.
struct DoingPart : ScopedActivity {
  explicit DoingPart(const char* part) : ScopedActivity({activity.what, activity.layer, part, activity.step}) {}
};

// A step of training.
struct DoingStep : ScopedActivity {
  explicit DoingStep(Index step) : ScopedActivity({"", -1, "", step}) {}
};

}  // namespace sy
