// Current activity of this process: text for error and hang messages, trace spans, profiler ranges.
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

// Activity of the thread that computes. Its texts must live until the process ends.
struct Activity {
  const char* what = "";  // "the forward pass"; empty if unknown
  Index layer = -1;       // -1: no layer
  const char* part = "";  // part of the activity: "dispatch"; empty: all of it
  Index step = 0;         // training step, from 1; 0: no step
  // " in the dispatch of the forward pass of layer 2, step 7"; empty if nothing is known.
  std::string where() const {
    const std::string number = step > 0 ? fmt::format("step {}", step) : "";
    if (!*what) return step > 0 ? " in " + number : "";
    return fmt::format(" in the {}{}{}{}{}{}", part, *part ? " of the " : "", what,
                       layer < 0 ? "" : fmt::format(" of layer {}", layer), step > 0 ? ", " : "", number);
  }
};
inline Activity activity;                     // only for the thread that computes
inline Seqlock<Activity> published_activity;  // equal value, for other threads

// Number of file chunks that this process has read or written. The watchdog sees it as progress.
inline std::atomic<std::uint64_t> local_progress{0};

// Sets and publishes the activity, and returns the previous one.
inline Activity set_activity(const Activity& next) {
  published_activity.write(next);
  return std::exchange(activity, next);
}

// Sets the activity until the end of the scope.
class ScopedActivity {
 public:
  explicit ScopedActivity(const Activity& next) : before_(set_activity(next)) {}
  ~ScopedActivity() { set_activity(before_); }
  ScopedActivity(const ScopedActivity&) = delete;
  ScopedActivity& operator=(const ScopedActivity&) = delete;

 private:
  Activity before_;
};

// Part of a step in host time. On a GPU the work itself may run later.
struct TraceSpan {
  using Number = std::pair<const char*, Index>;  // for example {"rows", 128}
  const char* what;
  Index layer;                                         // -1: no layer
  std::chrono::steady_clock::time_point begin, end{};  // end is zero while the span is open
  std::array<Number, 4> numbers{};                     // unused entries have a nullptr name
};
// Spans of the traced steps, in order of begin. nullptr if no step is traced.
inline std::vector<TraceSpan>* trace = nullptr;

// Records a trace span and a profiler range until the end of the scope.
// Its layer is activity.layer.
class Traced {
 public:
  using Numbers = std::initializer_list<TraceSpan::Number>;
  explicit Traced(const char* what, Numbers numbers = {}) { begin(what, numbers); }
  ~Traced() { end(); }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

  // Ends this span, and begins the next one.
  void next(const char* what, Numbers numbers = {}) {
    end();
    begin(what, numbers);
  }
  // Adds numbers to the span; drops them if it has four.
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

// Sets the activity and records a span until the end of the scope. Keeps the step.
class Doing {
 public:
  explicit Doing(const char* what, Index layer = -1) : activity_({what, layer, "", activity.step}), span_(what) {}

 private:
  ScopedActivity activity_;
  Traced span_;
};

// Sets the part of the current activity until the end of the scope.
struct DoingPart : ScopedActivity {
  explicit DoingPart(const char* part) : ScopedActivity({activity.what, activity.layer, part, activity.step}) {}
};

// Sets the training step until the end of the scope.
struct DoingStep : ScopedActivity {
  explicit DoingStep(Index step) : ScopedActivity({"", -1, "", step}) {}
};

}  // namespace sy
