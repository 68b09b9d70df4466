// Host time of each section of the training steps of a rank, summed over the steps.
//
// TraceScope (dist/phase.h) reports the begin and the end of every span, and collectives report the
// time that they count for Traffic anyway. Nothing waits for the device: on a GPU these are times
// of the host, which enqueues operations and waits where a step needs a result.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// Sections of a step, in order. `other`: norms, sums of the residual stream, all that has no span.
enum class StepSection : std::uint8_t {
  data,
  embedding,
  attention,
  mlp,
  route,
  dispatch,
  experts,
  shared_experts,
  combine,
  output,
  gradients,
  optimizer,
  new_weights,
  statistics,
  other
};
constexpr int num_step_sections = 15;
// Returns the name of the section's span in traces, for example "shared experts".
std::string_view name_of(StepSection section);

// Times of one rank. The thread that computes owns it.
class StepTimes {
 public:
  using Clock = std::chrono::steady_clock;
  // `all` excludes sections inside this one. `collectives` is the share of `all` in calls of
  // collectives, waits for other ranks included.
  struct Times {
    Clock::duration all{}, collectives{};
  };

  // A span begins inside the open ones. If its name has no section, the span has the section of the
  // span around it.
  void begin(const char* name, Clock::time_point now) {
    if (!open_.empty()) charge(now);
    last_ = now;
    open_.push_back(section_of(name));
  }
  // The innermost span ends. No-op if no span is open.
  void end(Clock::time_point now) {
    if (open_.empty()) return;
    charge(now);
    open_.pop_back();
  }
  // A collective took this time. No-op outside of spans.
  void add_collective(Clock::duration time) {
    if (!open_.empty()) of(open_.back()).collectives += time;
  }

  const Times& operator[](StepSection section) const { return times_[static_cast<std::size_t>(section)]; }
  // Sets all times to 0.
  void clear() { times_ = {}; }

 private:
  Times& of(StepSection section) { return times_[static_cast<std::size_t>(section)]; }
  void charge(Clock::time_point now) {
    of(open_.back()).all += now - last_;
    last_ = now;
  }
  // Finds the section of a name by its address. A name that is not known yet is compared as text.
  StepSection section_of(const char* name) {
    for (const auto& [known, section] : known_)
      if (known == name) return section == inherited ? around() : section;
    return learn(name);
  }
  StepSection learn(const char* name);
  StepSection around() const { return open_.empty() ? StepSection::other : open_.back(); }
  static constexpr auto inherited = static_cast<StepSection>(num_step_sections);

  std::array<Times, num_step_sections> times_{};
  std::vector<StepSection> open_;  // the innermost last
  Clock::time_point last_{};
  std::vector<std::pair<const char*, StepSection>> known_;
};

}  // namespace sy
