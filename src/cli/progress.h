// How far a command is that reads or writes much.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

#include "kernels/tensor.h"

namespace sy {

// On a terminal one line that renews itself; elsewhere a line for every phase and every half minute.
class ByteProgress {
 public:
  // bytes of total are done, of which this phase is a part or the whole. total 0: not known.
  void show(std::string_view phase, Index bytes, Index total) {
    const bool new_phase = phase != phase_;
    const double now = std::chrono::duration<double>(Clock::now() - start_).count();
    if (!new_phase && (total == 0 || bytes < total) && now - shown_ < (terminal_ ? 0.2 : 30)) return;
    if (new_phase) {
      phase_ = phase;
      phase_start_ = now;
      phase_bytes_ = bytes;
    }
    shown_ = now;
    std::string line = phase_;
    if (total == 0 && bytes > 0) line += fmt::format(": {:.1f} MB", static_cast<double>(bytes) / 1e6);
    if (total > 0) {
      line += fmt::format(": {:.0f}% of {:.1f} MB", 100.0 * static_cast<double>(bytes) / static_cast<double>(total),
                          static_cast<double>(total) / 1e6);
      const double seconds = now - phase_start_;
      if (seconds > 0.5 && bytes > phase_bytes_ && bytes < total) {
        const double rate = static_cast<double>(bytes - phase_bytes_) / seconds;
        line += fmt::format(", {:.1f} MB/s, {:.0f} s left", rate / 1e6, static_cast<double>(total - bytes) / rate);
      }
    }
    std::fputs((terminal_ ? "\r" + line + "\033[K" : line + "\n").c_str(), stderr);
    std::fflush(stderr);
  }
  // Leaves the terminal's line empty.
  ~ByteProgress() {
    if (terminal_ && !phase_.empty()) fmt::print(stderr, "\r\033[K");
  }

 private:
  using Clock = std::chrono::steady_clock;
  const bool terminal_ = ::isatty(STDERR_FILENO);
  const Clock::time_point start_ = Clock::now();
  std::string phase_;
  double phase_start_ = 0, shown_ = 0;
  Index phase_bytes_ = 0;
};

}  // namespace sy
