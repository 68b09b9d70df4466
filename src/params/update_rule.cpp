#include "src/params/update_rule.h"

#include <cmath>

#include "kernels/ops/optimizer.h"

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

constexpr StateTensor moments[] = {{"m", "running mean of the gradient"},
                                   {"v", "running mean of the squared gradient"}};
constexpr StateTensor momentum_state[] = {{"momentum", "decaying sum of the gradients"}};

// In the order of enum class Optimizer.
constexpr UpdateRule rules[] = {
    {.name = "adamw", .state = moments, .update = adamw},
    {.name = "sgd", .state = momentum_state, .update = sgd},
};

}  // namespace

const UpdateRule& update_rule(Optimizer optimizer) {
  return rules[static_cast<std::size_t>(optimizer)];
}

std::array<float, 3> step_scalars(const Config::Train& train, double lr, Index step) {
  const auto bias = [&](double beta) { return static_cast<float>(1 - std::pow(beta, static_cast<double>(step))); };
  return {static_cast<float>(lr), bias(train.beta1), bias(train.beta2)};
}

}  // namespace sy
