// What this process is doing, in words, for the message of a collective that fails.
#pragma once

#include "kernels/tensor.h"

namespace sy {

struct Activity {
  const char* what = "";
  Index layer = -1;
  const char* part = "";  // of what is done: "dispatch"
  std::string str() const {
    return fmt::format("{}{}{}{}", part, *part ? " of the " : "", what,
                       layer < 0 ? "" : fmt::format(" of layer {}", layer));
  }
};
inline Activity activity;  // of the one thread that computes

// Holds until the end of the scope.
class Doing {
 public:
  explicit Doing(const char* what, Index layer = -1) : before_(activity) { activity = {what, layer, ""}; }
  ~Doing() { activity = before_; }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  Activity before_;
};

// A part of what is done already, until the end of the scope.
class DoingPart {
 public:
  explicit DoingPart(const char* part) : before_(activity.part) { activity.part = part; }
  ~DoingPart() { activity.part = before_; }
  DoingPart(const DoingPart&) = delete;
  DoingPart& operator=(const DoingPart&) = delete;

 private:
  const char* before_;
};

}  // namespace sy
