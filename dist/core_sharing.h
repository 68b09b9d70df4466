#pragma once

#include <sched.h>

#include <chrono>

namespace sy {

// How a rank that waits for another one leaves its core to others.
// A yield is short, unless another process computes on this core: then it lasts a time slice of
// some milliseconds. The kernel prefers a process that wakes up to one that yielded. So beside a
// process that computes, a rank should sleep.
class CoreSharing {
 public:
  // Yields the core and returns true. If a yield lasted a time slice shortly before, returns false:
  // sleep instead.
  bool yield() {
    const auto before = Clock::now();
    if (before < sleep_until_) return false;
    sched_yield();
    if (const auto after = Clock::now(); after - before > std::chrono::milliseconds(1))
      sleep_until_ = after + std::chrono::milliseconds(100);
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point sleep_until_{};
};

}  // namespace sy
