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

// Records a trace span and a profiler range until the end of the scope.
// Their layer is that of the current phase. There is no span if RankContext::trace_spans is
// nullptr. Names must live until the process ends.
class TraceScope {
 public:
  using Numbers = std::initializer_list<TraceSpan::Number>;
  explicit TraceScope(RankContext& rank, const char* name, Numbers numbers = {}) : rank_(rank) { begin(name, numbers); }
  ~TraceScope() { end(); }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  // Ends this span, and begins the next one.
  void next(const char* name, Numbers numbers = {}) {
    end();
    begin(name, numbers);
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
  void begin(const char* name, Numbers numbers) {
    const Index layer = rank_.phase.current().layer;
    range_.emplace(name, layer);
    spans_ = rank_.trace_spans;
    if (!spans_) return;
    index_ = spans_->size();
    spans_->push_back({name, layer, std::chrono::steady_clock::now()});
    add(numbers);
  }
  void end() {
    if (spans_) (*spans_)[index_].end = std::chrono::steady_clock::now();
    range_.reset();
  }

  RankContext& rank_;
  std::optional<ProfilerRange> range_;
  std::vector<TraceSpan>* spans_ = nullptr;
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
