// Update rules of optimizers as data: their state, its sharding, and their update.
// Flat buffers, memory plans, checkpoints and DistributedOptimizer follow from the table.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "kernels/device.h"
#include "src/config.h"

namespace sy {

// A tensor of optimizer state. It is f32, starts as zeros, and has the shape of its parameter.
struct StateTensor {
  std::string_view name;  // of /optimizer/NAME in checkpoints
  std::string_view meaning;
};

// Operands of the update of n consecutive elements of one parameter.
struct UpdateOperands {
  const Config::Train& train;
  bool decays;                  // ParamSpec::decays
  ConstView clip_coefficient;   // [1]
  ConstView step_scalars;       // [3], see step_scalars()
  View gradient;                // [n] f32
  View weight;                  // [n] f32
  View rounded;                 // [n] bf16 = weight; empty if the model computes in f32
  std::span<const View> state;  // each [n] f32, in the order of UpdateRule::state
};

// An update rule. Its hyperparameters are keys of [train].
struct UpdateRule {
  std::string_view name;  // value of train.optimizer
  std::span<const StateTensor> state;
  // Updates the state and the weights. If clip_coefficient is NaN, nothing changes.
  void (*update)(Device& device, const UpdateOperands& operands);
};

// Returns the rule of an optimizer.
const UpdateRule& update_rule(Optimizer optimizer);

// Returns the numbers of UpdateOperands::step_scalars, the only ones that change from step to step:
// the learning rate, and the bias corrections 1 - beta1^step and 1 - beta2^step.
std::array<float, 3> step_scalars(const Config::Train& train, double lr, Index step);

}  // namespace sy
