#include "src/train/lr_schedule.h"

#include <algorithm>
#include <cmath>

namespace sy {

double learning_rate(const Config::Train& t, Index step) {
  if (step <= t.warmup) return t.lr * static_cast<double>(step) / static_cast<double>(t.warmup);
  const auto fraction_since = [&](Index start) {  // fraction of the steps from `start` to the last
    return std::clamp(static_cast<double>(step - start) / static_cast<double>(std::max<Index>(1, t.steps - start)), 0.0,
                      1.0);
  };
  switch (t.schedule) {
    case Schedule::constant:
      return t.lr;
    case Schedule::cosine:
      return t.min_lr + (t.lr - t.min_lr) * 0.5 * (1 + std::cos(3.141592653589793 * fraction_since(t.warmup)));
    case Schedule::linear:
      return t.lr + (t.min_lr - t.lr) * fraction_since(t.warmup);
    case Schedule::wsd:
      return t.lr + (t.min_lr - t.lr) * fraction_since(std::max(t.warmup, t.steps - (t.steps + 9) / 10));
  }
  return t.lr;
}

}  // namespace sy
