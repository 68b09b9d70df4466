#include "src/train/schedule.h"

#include <algorithm>
#include <cmath>

namespace sy {

double learning_rate(const Config::Train& t, Index step) {
  if (step <= t.warmup) return t.lr * static_cast<double>(step) / static_cast<double>(t.warmup);
  const auto part = [&](Index from) {  // fraction of the way from step `from` to the last
    return std::clamp(static_cast<double>(step - from) / static_cast<double>(std::max<Index>(1, t.steps - from)), 0.0,
                      1.0);
  };
  switch (t.schedule) {
    case Schedule::constant:
      return t.lr;
    case Schedule::cosine:
      return t.min_lr + (t.lr - t.min_lr) * 0.5 * (1 + std::cos(3.141592653589793 * part(t.warmup)));
    case Schedule::linear:
      return t.lr + (t.min_lr - t.lr) * part(t.warmup);
    case Schedule::wsd:
      return t.lr + (t.min_lr - t.lr) * part(std::max(t.warmup, t.steps - (t.steps + 9) / 10));
  }
  return t.lr;
}

}  // namespace sy
