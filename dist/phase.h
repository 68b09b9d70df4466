// Current phase of this process: text for error and hang messages, trace spans, profiler ranges.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/blocked_on.h"
#include "kernels/profiler_range.h"
#include "kernels/tensor.h"

namespace sy {

// Phase of the thread that computes. Its texts must live until the process ends.
struct Phase {
  const char* name = "";      // "the forward pass"; empty if unknown
  Index layer = -1;           // -1: no layer
  const char* subphase = "";  // "dispatch"; empty: the whole phase
  Index step = 0;             // training step, from 1; 0: no step
  // " in the dispatch of the forward pass of layer 2, step 7"; empty if nothing is known.
  std::string describe() const {
    const std::string number = step > 0 ? fmt::format("step {}", step) : "";
    if (!*name) return step > 0 ? " in " + number : "";
    return fmt::format(" in the {}{}{}{}{}{}", subphase, *subphase ? " of the " : "", name,
                       layer < 0 ? "" : fmt::format(" of layer {}", layer), step > 0 ? ", " : "", number);
  }
};
inline Phase current_phase;             // only for the thread that computes
inline Seqlock<Phase> published_phase;  // copy of current_phase, for other threads

// Number of file chunks that this process has read or written. The watchdog sees it as progress.
inline std::atomic<std::uint64_t> local_progress{0};

// Sets and publishes the phase, and returns the previous one.
inline Phase set_phase(const Phase& next) {
  published_phase.write(next);
  return std::exchange(current_phase, next);
}

// Sets the phase until the end of the scope.
class PhaseGuard {
 public:
  explicit PhaseGuard(const Phase& next) : previous_(set_phase(next)) {}
  ~PhaseGuard() { set_phase(previous_); }
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  Phase previous_;
};

// A span of a step in host time. On a GPU the work itself may run later.
struct TraceSpan {
  using Number = std::pair<const char*, Index>;  // for example {"rows", 128}
  const char* name;
  Index layer;                                         // -1: no layer
  std::chrono::steady_clock::time_point begin, end{};  // end is zero while the span is open
  std::array<Number, 4> numbers{};                     // unused entries have a nullptr name
};
// Spans of the traced steps, in order of begin. nullptr if no step is traced.
inline std::vector<TraceSpan>* trace_spans = nullptr;

// Records a trace span and a profiler range until the end of the scope.
// Its layer is current_phase.layer.
class TraceScope {
 public:
  using Numbers = std::initializer_list<TraceSpan::Number>;
  explicit TraceScope(const char* name, Numbers numbers = {}) { begin(name, numbers); }
  ~TraceScope() { end(); }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  // Ends this span, and begins the next one.
  void next(const char* name, Numbers numbers = {}) {
    end();
    begin(name, numbers);
  }
  // Adds numbers to the span; drops them if it has four.
  void add(Numbers numbers) {
    if (!spans_) return;
    auto& all = (*spans_)[index_].numbers;
    std::size_t n = 0;
    while (n < all.size() && all[n].first) ++n;
    for (const TraceSpan::Number& number : numbers)
      if (n < all.size()) all[n++] = number;
  }

 private:
  void begin(const char* name, Numbers numbers) {
    range_.emplace(name, current_phase.layer);
    spans_ = trace_spans;
    if (!spans_) return;
    index_ = spans_->size();
    spans_->push_back({name, current_phase.layer, std::chrono::steady_clock::now()});
    add(numbers);
  }
  void end() {
    if (spans_) (*spans_)[index_].end = std::chrono::steady_clock::now();
    range_.reset();
  }

  std::optional<ProfilerRange> range_;
  std::vector<TraceSpan>* spans_ = nullptr;
  std::size_t index_ = 0;
};

// Sets the phase and records a trace span until the end of the scope. Keeps the step.
class ScopedPhase {
 public:
  explicit ScopedPhase(const char* name, Index layer = -1)
      : phase_({name, layer, "", current_phase.step}), span_(name) {}

 private:
  PhaseGuard phase_;
  TraceScope span_;
};

// Sets the subphase of the current phase until the end of the scope. Records no trace span.
struct ScopedSubphase : PhaseGuard {
  explicit ScopedSubphase(const char* name)
      : PhaseGuard({current_phase.name, current_phase.layer, name, current_phase.step}) {}
};

// Sets the training step, without a phase name, until the end of the scope.
struct ScopedStep : PhaseGuard {
  explicit ScopedStep(Index step) : PhaseGuard({"", -1, "", step}) {}
};

}  // namespace sy
