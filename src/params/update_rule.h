// Update rules of optimizers as data: their state, its sharding, and their update.
// Flat buffers, memory plans, checkpoints and DistributedOptimizer follow from the table.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/device.h"
#include "src/config.h"
#include "src/params/specs.h"

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
  View gradient;                // [n] f32, before clipping
  View weight;                  // [n] f32
  View rounded;                 // [n] bf16 = weight; empty if the model computes in f32
  std::span<const View> state;  // each [n] f32, in the order of UpdateRule::state
};

// Smallest unit of a parameter that a rank can update alone.
enum class ShardGranularity : std::uint8_t { elements, matrices };

// Second half of a rule of granularity `matrices`. One rank computes the direction of a matrix. The
// ranks that own its elements apply it.
struct MatrixRule {
  // f32 elements of memory that `direction` needs for one matrix
  Index (*scratch)(Index rows, Index columns);
  // Replaces each matrix, which holds state[0], by the direction of its update.
  // - matrices: [rows, columns] f32
  // - squares: [number of matrices] f64, memory for sums of squares
  // - scratch: [n] f32, where n is the largest scratch(rows, columns) of the matrices
  void (*direction)(Device& device, std::span<const View> matrices, View squares, View scratch);
  // Updates the weights by -learning rate * (direction + weight decay * weight).
  // direction: [n] f32, of the elements of `operands`. If clip_coefficient is NaN, nothing changes.
  void (*apply)(Device& device, const UpdateOperands& operands, ConstView direction);
};

// An update rule. Its hyperparameters are keys of [train].
struct UpdateRule {
  std::string_view name;  // value of train.optimizer
  std::span<const StateTensor> state;
  // Granularity `elements`: updates the state and the weights. Granularity `matrices`: updates the
  // state alone. If clip_coefficient is NaN, nothing changes.
  void (*update)(Device& device, const UpdateOperands& operands);
  const MatrixRule* matrix_rule = nullptr;  // nullptr if the granularity is `elements`
  ShardGranularity granularity() const { return matrix_rule ? ShardGranularity::matrices : ShardGranularity::elements; }
};

// Returns the rule of an optimizer.
const UpdateRule& update_rule(Optimizer optimizer);

// Sets ParamSpec::optimizer of each parameter to `optimizer`.
// If its rule is over whole matrices, only weight matrices of attention, FFNs and experts get it.
// Their ParamSpec::matrix is set too. All other parameters get AdamW.
void assign_optimizer(Optimizer optimizer, std::vector<ParamSpec>& specs);

// Returns the numbers of UpdateOperands::step_scalars: the learning rate, and the bias corrections
// 1 - beta1^step and 1 - beta2^step (Kingma and Ba, "Adam", 2015). All other hyperparameters are
// the same in each step. step: from 1.
std::array<float, 3> step_scalars(const Config::Train& train, double lr, Index step);

}  // namespace sy
