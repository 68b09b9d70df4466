// Gradient clipping and updates of weights.
#pragma once

#include <limits>

#include "kernels/ops/operation.h"

namespace sy::ops {

// Gradient-clipping coefficient = min(1, clip / norm), or 1 if clip is 0. NaN if the norm of the
// gradient is not finite or greater than `limit`.
struct ClipCoefficient {
  static constexpr std::string_view name = "clip_coefficient";
  ConstView squares;  // [1] f64, the sum of squares of the gradient
  float clip;
  View coefficient;  // [1]
  double limit = std::numeric_limits<double>::infinity();
  bool is_empty() const { return false; }
  Cost cost() const { return {}; }
};

// AdamW with decoupled weight decay (Loshchilov and Hutter, 2019). m, v are the moving averages
// of g * coefficient and of its square. Their new values change w before they are rounded to bf16.
//   w -= lr * (m / bias1 / (sqrt(v / bias2) + eps) + weight_decay * w)
// If coefficient is NaN, nothing changes. Only `step_scalars` change from step to step.
// bit_sums += the sums of the bits (BitSum) of w, m, v and rounded, before and after the update.
struct AdamW {
  static constexpr std::string_view name = "adamw";
  ConstView coefficient;   // [1]
  ConstView step_scalars;  // [3] = lr, bias1 = 1 - beta1^step, bias2 = 1 - beta2^step
  ConstView g;             // [n]
  float beta1, beta2, eps, weight_decay;
  View w;              // [n], updated
  View m, v;           // [n] f32 or bf16, updated
  View rounded = {};   // [n] bf16 = w; may be empty
  View bit_sums = {};  // [2] i32 +=; may be empty
  bool is_empty() const { return w.elements() == 0; }
  Cost cost() const { return Cost().reads(g).updates(w, m, v).writes(rounded); }
};

// m = momentum * m + coefficient * g. Then g becomes the direction of the update: m before its
// rounding or, if `nesterov` is set, momentum * m + coefficient * g, which is one step ahead. If
// coefficient is NaN, nothing changes.
struct MomentumUpdate {
  static constexpr std::string_view name = "momentum_update";
  ConstView coefficient;  // [1]
  View g;                 // [n], updated
  float momentum;
  View m;  // [n] f32 or bf16, updated
  bool nesterov = false;
  bool is_empty() const { return m.elements() == 0; }
  Cost cost() const { return Cost().updates(g, m); }
};

// w -= lr * (update + weight_decay * w). If coefficient is NaN, nothing changes.
struct ApplyUpdate {
  static constexpr std::string_view name = "apply_update";
  ConstView coefficient;  // [1]
  ConstView lr;           // [1]
  ConstView update;       // [n] f32 or bf16
  float weight_decay;
  View w;             // [n], updated
  View rounded = {};  // [n] bf16 = w; may be empty
  bool is_empty() const { return w.elements() == 0; }
  Cost cost() const { return Cost().reads(update).updates(w).writes(rounded); }
};

}  // namespace sy::ops
