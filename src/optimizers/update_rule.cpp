#include "src/optimizers/update_rule.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/optimizer.h"
#include "src/optimizers/newton_schulz.h"

namespace sy {
namespace {

float weight_decay(const UpdateOperands& x) {
  return x.decays ? static_cast<float>(x.hyperparameters.weight_decay) : 0.0f;
}

void adamw(Device& device, const UpdateOperands& x) {
  run(device, ops::AdamW{.coefficient = x.clip_coefficient,
                         .step_scalars = x.step_scalars,
                         .g = x.gradient,
                         .beta1 = static_cast<float>(x.hyperparameters.beta1),
                         .beta2 = static_cast<float>(x.hyperparameters.beta2),
                         .eps = static_cast<float>(x.hyperparameters.eps),
                         .weight_decay = weight_decay(x),
                         .w = x.weight,
                         .m = x.state[0],
                         .v = x.state[1],
                         .rounded = x.rounded,
                         .bit_sums = x.bit_sums});
}

void update_momentum(Device& device, const UpdateOperands& x, double momentum, bool nesterov) {
  add_bit_sums(device, x, 0);
  run(device, ops::MomentumUpdate{.coefficient = x.clip_coefficient,
                                  .g = x.gradient,
                                  .momentum = static_cast<float>(momentum),
                                  .m = x.state[0],
                                  .nesterov = nesterov});
}

void sgd(Device& device, const UpdateOperands& x) {
  update_momentum(device, x, x.hyperparameters.momentum, false);
  apply_direction(device, x, x.gradient);
}

void nesterov_momentum(Device& device, const UpdateOperands& x) {
  update_momentum(device, x, x.hyperparameters.muon_momentum, true);
}

// The direction of Muon: the orthogonalised momentum, with elements of the root mean square 0.2,
// which is usual for AdamW (Liu et al., "Muon is scalable for LLM training", 2025). The elements of
// an orthogonal matrix have that of 1 / sqrt(max(rows, columns)).
void orthogonalized(Device& device, std::span<const View> matrices, View squares, View scratch) {
  newton_schulz(device, matrices, squares, scratch);
  for (const View& x : matrices)
    run(device, ops::Scale{.x = x, .factor = 0.2f * std::sqrt(static_cast<float>(std::max(x.dim(0), x.dim(1))))});
}

constexpr StateTensor moments[] = {{"m", "running mean of the gradient"},
                                   {"v", "running mean of the squared gradient"}};
constexpr StateTensor momentum_state[] = {{"momentum", "decaying sum of the gradients"}};

constexpr MatrixRule muon{.scratch = newton_schulz_scratch, .direction = orthogonalized};

// The first row is Optimizer::adamw.
constexpr UpdateRule rules[] = {
    {.name = "adamw",
     .meaning = "m and v are running means of the gradient and of its square, corrected for their start at 0, and "
                "w -= lr * (m / (sqrt(v) + eps) + weight_decay * w) (Loshchilov and Hutter, 2019)",
     .state = moments,
     .update = adamw},
    {.name = "sgd",
     .meaning = "m = momentum * m + gradient, and w -= lr * (m + weight_decay * w)",
     .state = momentum_state,
     .update = sgd},
    {.name = "muon",
     .meaning =
         "m = muon_momentum * m + gradient. muon_momentum * m + gradient of each weight matrix of attention (of each "
         "head for queries, keys and values), FFNs and experts is orthogonalised and scaled to elements of 0.2 in root "
         "mean square, and w -= lr * (that + weight_decay * w). All other parameters are updated by adamw (Jordan et "
         "al., 2024; Liu et al., 2025)",
     .state = momentum_state,
     .update = nesterov_momentum,
     .matrix_rule = &muon},
};

}  // namespace

std::span<const UpdateRule> update_rules() {
  return rules;
}

void apply_direction(Device& device, const UpdateOperands& x, ConstView direction) {
  run(device, ops::ApplyUpdate{.coefficient = x.clip_coefficient,
                               .lr = x.step_scalars.rows(0, 1),
                               .update = direction,
                               .weight_decay = weight_decay(x),
                               .w = x.weight,
                               .rounded = x.rounded});
  add_bit_sums(device, x, 1);
}

void add_bit_sums(Device& device, const UpdateOperands& x, Index which) {
  if (!x.bit_sums) return;
  const View sum = x.bit_sums.rows(which, 1);
  run(device, ops::BitSum{.x = x.weight, .out = sum});
  if (x.rounded) run(device, ops::BitSum{.x = x.rounded, .out = sum});
  for (const View& state : x.state) run(device, ops::BitSum{.x = state, .out = sum});
}

std::array<float, 3> step_scalars(const Hyperparameters& hyperparameters, double lr, Index step) {
  const auto bias = [&](double beta) { return static_cast<float>(1 - std::pow(beta, static_cast<double>(step))); };
  return {static_cast<float>(lr), bias(hyperparameters.beta1), bias(hyperparameters.beta2)};
}

}  // namespace sy
