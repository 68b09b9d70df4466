// Scopes that set the phase of a rank: text for error and hang messages, trace spans, profiler
// ranges.
#pragma once

#include <chrono>
#include <initializer_list>
#include <optional>
#include <vector>

#include "dist/rank_context.h"
#include "kernels/profiler_range.h"
#include "kernels/tensor.h"

namespace sy {

// Sets the phase until the end of the scope.
class PhaseGuard {
 public:
  PhaseGuard(RankContext& rank, const Phase& next) : state_(rank.phase), previous_(state_.set(next)) {}
  ~PhaseGuard() { state_.set(previous_); }
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  PhaseState& state_;
  Phase previous_;
};

// Records a trace span, a profiler range and the time of a section until the end of the scope.
// Their layer is that of the current phase. There is no span if RankContext::trace_spans is
// nullptr, and no time if RankContext::step_times is nullptr. Both objects must outlive the scope.
// Names must live until the process ends.
class TraceScope {
 public:
  using Numbers = std::initializer_list<TraceSpan::Number>;
  explicit TraceScope(RankContext& rank, const char* name, Numbers numbers = {})
      : rank_(rank), spans_(rank.trace_spans), times_(rank.step_times) {
    begin(name, numbers, now());
  }
  ~TraceScope() { end(now()); }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  // Ends this span, and begins the next one.
  void next(const char* name, Numbers numbers = {}) {
    const Clock::time_point time = now();
    end(time);
    begin(name, numbers, time);
  }
  // Adds numbers to the span. A span has at most four; further numbers are dropped.
  void add(Numbers numbers) {
    if (!spans_) return;
    auto& all = (*spans_)[index_].numbers;
    std::size_t n = 0;
    while (n < all.size() && all[n].first) ++n;
    for (const TraceSpan::Number& number : numbers)
      if (n < all.size()) all[n++] = number;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point now() const { return spans_ || times_ ? Clock::now() : Clock::time_point{}; }
  void begin(const char* name, Numbers numbers, Clock::time_point time) {
    const Index layer = rank_.phase.current().layer;
    range_.emplace(name, layer);
    if (times_) times_->begin(name, time);
    if (!spans_) return;
    index_ = spans_->size();
    spans_->push_back({name, layer, time});
    add(numbers);
  }
  void end(Clock::time_point time) {
    if (times_) times_->end(time);
    if (spans_) (*spans_)[index_].end = time;
    range_.reset();
  }

  RankContext& rank_;
  std::vector<TraceSpan>* const spans_;
  StepTimes* const times_;
  std::optional<ProfilerRange> range_;
  std::size_t index_ = 0;
};

// Sets the phase and records a trace span until the end of the scope. Keeps the step.
class ScopedPhase {
 public:
  ScopedPhase(RankContext& rank, const char* name, Index layer = -1)
      : phase_(rank, {name, layer, "", rank.phase.current().step}), span_(rank, name) {}

 private:
  PhaseGuard phase_;
  TraceScope span_;
};

// Sets the subphase of the current phase until the end of the scope. Records no trace span.
struct ScopedSubphase : PhaseGuard {
  ScopedSubphase(RankContext& rank, const char* name)
      : PhaseGuard(rank, {rank.phase.current().name, rank.phase.current().layer, name, rank.phase.current().step}) {}
};

// Sets the training step, without a phase name, until the end of the scope.
struct ScopedStep : PhaseGuard {
  ScopedStep(RankContext& rank, Index step) : PhaseGuard(rank, {"", -1, "", step}) {}
};

}  // namespace sy
