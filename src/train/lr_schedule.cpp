#include "src/train/lr_schedule.h"

#include <algorithm>
#include <cmath>

namespace sy {
namespace {

constexpr double pi = 3.141592653589793;

// Returns the part of the decay of `wsd` that is done after the fraction x of its steps.
double decayed(DecayShape shape, double x) {
  switch (shape) {
    case DecayShape::linear:
      return x;
    case DecayShape::cosine:
      return 0.5 * (1 - std::cos(pi * x));
    case DecayShape::one_minus_sqrt:
      return std::sqrt(x);
  }
  return x;
}

double scheduled(const Config::Train& t, Index step) {
  if (step <= t.warmup) return t.lr * static_cast<double>(step) / static_cast<double>(t.warmup);
  const auto fraction_since = [&](Index start) {  // fraction of the steps from `start` to the last
    return std::clamp(static_cast<double>(step - start) / static_cast<double>(std::max<Index>(1, t.steps - start)), 0.0,
                      1.0);
  };
  switch (t.schedule) {
    case Schedule::constant:
      return t.lr;
    case Schedule::cosine:
      return t.min_lr + (t.lr - t.min_lr) * 0.5 * (1 + std::cos(pi * fraction_since(t.warmup)));
    case Schedule::linear:
      return t.lr + (t.min_lr - t.lr) * fraction_since(t.warmup);
    case Schedule::wsd: {
      const Index start = std::max(t.warmup, t.steps - t.decay_length());
      return t.lr + (t.min_lr - t.lr) * decayed(t.decay_shape, fraction_since(start));
    }
  }
  return t.lr;
}

}  // namespace

double learning_rate(const Config::Train& t, Index step, Index rewarmup_after) {
  const double lr = scheduled(t, step);
  const Index since = step - rewarmup_after;
  if (rewarmup_after < 0 || since >= t.rewarmup) return lr;
  return lr * static_cast<double>(since) / static_cast<double>(t.rewarmup);
}

}  // namespace sy
