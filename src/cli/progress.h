// Progress lines of long commands, on standard error.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

#include "kernels/tensor.h"

namespace sy {

// Text of a progress line: "reading: 50% of 8.0 MB, 2.0 MB/s, 2 s left", "planning: 3 of 12
// layouts, 9 s left". Pure function.
//   unit        "bytes" is shown in MB; any other word names the things that are counted
//   total       0 means unknown
//   seconds, before  time since the phase began, and what was done then: they give the rate
inline std::string progress_text(std::string_view phase, Index done, Index total, std::string_view unit, double seconds,
                                 Index before) {
  const bool bytes = unit == "bytes";
  const auto number = [](Index n) { return static_cast<double>(n); };
  std::string text(phase);
  if (total == 0 && done > 0)
    text += bytes ? fmt::format(": {:.1f} MB", number(done) / 1e6) : fmt::format(": {} {}", done, unit);
  if (total == 0) return text;
  text += bytes ? fmt::format(": {:.0f}% of {:.1f} MB", 100.0 * number(done) / number(total), number(total) / 1e6)
                : fmt::format(": {} of {} {}", done, total, unit);
  if (seconds <= 0.5 || done <= before || done >= total) return text;
  const double rate = number(done - before) / seconds;
  if (bytes) text += fmt::format(", {:.1f} MB/s", rate / 1e6);
  return text + fmt::format(", {:.0f} s left", number(total - done) / rate);
}

// Prints progress. On a terminal it rewrites one line; otherwise it prints a line for every phase
// and every half minute.
class Progress {
 public:
  // If `patient` is true, commands that take less than a second (half a minute without a terminal)
  // show nothing.
  explicit Progress(bool patient = false) : patient_(patient) {}
  // Shows the completed work out of `total`, of this phase or of all. See progress_text().
  void show(std::string_view phase, Index done, Index total, std::string_view unit = "bytes") {
    const bool new_phase = phase != phase_;
    const double now = std::chrono::duration<double>(Clock::now() - start_).count();
    if (new_phase) {
      phase_ = phase;
      phase_start_ = now;
      phase_done_ = done;
    }
    if (patient_ && now < (terminal_ ? 1 : 30)) return;
    if (!new_phase && (total == 0 || done < total) && now - shown_at_ < (terminal_ ? 0.2 : 30)) return;
    shown_at_ = now;
    shown_ = true;
    const std::string line = progress_text(phase, done, total, unit, now - phase_start_, phase_done_);
    std::fputs((terminal_ ? "\r" + line + "\033[K" : line + "\n").c_str(), stderr);
    std::fflush(stderr);
  }
  // Clears the terminal's line.
  void clear() {
    if (terminal_ && shown_) fmt::print(stderr, "\r\033[K");
    shown_ = false;
  }
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  const bool terminal_ = ::isatty(STDERR_FILENO), patient_;
  const Clock::time_point start_ = Clock::now();
  std::string phase_;
  bool shown_ = false;
  double phase_start_ = 0, shown_at_ = 0;
  Index phase_done_ = 0;
};

}  // namespace sy
