// What this process is doing, in words, for the message of a collective that fails.
#pragma once

#include "kernels/tensor.h"

namespace sy {

struct Activity {
  const char* what = "";
  Index layer = -1;
  std::string str() const { return layer < 0 ? what : fmt::format("{} of layer {}", what, layer); }
};
inline Activity activity;  // of the one thread that computes

// Holds until the end of the scope.
class Doing {
 public:
  explicit Doing(const char* what, Index layer = -1) : before_(activity) { activity = {what, layer}; }
  ~Doing() { activity = before_; }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  Activity before_;
};

}  // namespace sy
