#include "src/params/update_rule.h"

#include <cmath>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/optimizer.h"
#include "src/params/newton_schulz.h"

namespace sy {
namespace {

float weight_decay(const UpdateOperands& x) {
  return x.decays ? static_cast<float>(x.train.weight_decay) : 0.0f;
}

void adamw(Device& device, const UpdateOperands& x) {
  run(device, ops::AdamW{.coefficient = x.clip_coefficient,
                         .step_scalars = x.step_scalars,
                         .g = x.gradient,
                         .beta1 = static_cast<float>(x.train.beta1),
                         .beta2 = static_cast<float>(x.train.beta2),
                         .eps = static_cast<float>(x.train.eps),
                         .weight_decay = weight_decay(x),
                         .w = x.weight,
                         .m = x.state[0],
                         .v = x.state[1],
                         .rounded = x.rounded});
}

void momentum(Device& device, const UpdateOperands& x) {
  run(device, ops::MomentumUpdate{.coefficient = x.clip_coefficient,
                                  .g = x.gradient,
                                  .momentum = static_cast<float>(x.train.momentum),
                                  .m = x.state[0]});
}

void apply(Device& device, const UpdateOperands& x, ConstView update) {
  run(device, ops::ApplyUpdate{.coefficient = x.clip_coefficient,
                               .lr = x.step_scalars.rows(0, 1),
                               .update = update,
                               .weight_decay = weight_decay(x),
                               .w = x.weight,
                               .rounded = x.rounded});
}

// Stochastic gradient descent with momentum and decoupled weight decay.
//   m = momentum * m + g, w -= lr * (m + weight_decay * w)
void sgd(Device& device, const UpdateOperands& x) {
  momentum(device, x);
  apply(device, x, x.state[0]);
}

// The direction of Muon: the orthogonalised momentum, scaled by max(1, rows / columns)^0.5
// (Jordan et al., "Muon", 2024).
void orthogonalized(Device& device, std::span<const View> matrices, View squares, View scratch) {
  newton_schulz(device, matrices, squares, scratch);
  for (const View& x : matrices)
    if (x.dim(0) > x.dim(1))
      run(device, ops::Scale{.x = x, .factor = std::sqrt(static_cast<float>(x.dim(0)) / static_cast<float>(x.dim(1)))});
}

constexpr StateTensor moments[] = {{"m", "running mean of the gradient"},
                                   {"v", "running mean of the squared gradient"}};
constexpr StateTensor momentum_state[] = {{"momentum", "decaying sum of the gradients"}};

constexpr MatrixRule muon{.scratch = newton_schulz_scratch, .direction = orthogonalized, .apply = apply};

// In the order of enum class Optimizer.
constexpr UpdateRule rules[] = {
    {.name = "adamw", .state = moments, .update = adamw},
    {.name = "sgd", .state = momentum_state, .update = sgd},
    {.name = "muon", .state = momentum_state, .update = momentum, .matrix_rule = &muon},
};

// Weights that a rule over whole matrices updates, by the end of their names.
struct MatrixName {
  std::string_view suffix;
  MatrixDims dims;
};
constexpr MatrixName matrix_names[] = {
    {".attention.q.weight", {0, 2}},      {".attention.k.weight", {0, 2}},      {".attention.v.weight", {0, 2}},
    {".attention.out.weight", {0, 1}},    {".attention.q_down.weight", {0, 1}}, {".attention.kv_down.weight", {0, 1}},
    {".attention.k_rope.weight", {0, 1}}, {".mlp.up.weight", {1, 1}},           {".mlp.down.weight", {0, 1}},
    {".moe.shared.up.weight", {1, 1}},    {".moe.shared.down.weight", {0, 1}},  {".moe.experts.up.weight", {2, 1}},
    {".moe.experts.down.weight", {1, 1}},
};

}  // namespace

void assign_optimizer(Optimizer optimizer, std::vector<ParamSpec>& specs) {
  const bool of_matrices = update_rule(optimizer).granularity() == ShardGranularity::matrices;
  for (ParamSpec& spec : specs) {
    spec.optimizer = of_matrices ? Optimizer::adamw : optimizer;
    if (!of_matrices) continue;
    for (const MatrixName& name : matrix_names)
      if (spec.name.ends_with(name.suffix)) spec.optimizer = optimizer, spec.matrix = name.dims;
  }
}

const UpdateRule& update_rule(Optimizer optimizer) {
  return rules[static_cast<std::size_t>(optimizer)];
}

std::array<float, 3> step_scalars(const Config::Train& train, double lr, Index step) {
  const auto bias = [&](double beta) { return static_cast<float>(1 - std::pow(beta, static_cast<double>(step))); };
  return {static_cast<float>(lr), bias(train.beta1), bias(train.beta2)};
}

}  // namespace sy
