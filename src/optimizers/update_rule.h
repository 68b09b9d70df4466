// Update rules of optimizers as data: their state, its sharding, and their update.
// The values of train.optimizer and their help, flat buffers, memory plans, checkpoints and
// DistributedOptimizer follow from the one table.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "kernels/device.h"
#include "src/optimizers/optimizer.h"

namespace sy {

// A tensor of optimizer state. It starts as zeros, and has the shape of its parameter and the type
// ParamSpec::state_dtype.
struct StateTensor {
  std::string_view name;  // of /optimizer/NAME in checkpoints
  std::string_view meaning;
};

// Operands of the update of n consecutive elements of one parameter.
struct UpdateOperands {
  const Hyperparameters& hyperparameters;
  bool decays;                  // ParamSpec::decays
  ConstView clip_coefficient;   // [1]
  ConstView step_scalars;       // [3], see step_scalars()
  View gradient;                // [n] f32, before clipping; an update may overwrite it
  View weight;                  // [n] f32
  View rounded;                 // [n] bf16 = weight; empty if the model computes in f32
  std::span<const View> state;  // each [n] f32 or bf16, in the order of UpdateRule::state
  // [2] i32; may be empty. += the sums of the bits (ops::BitSum) of weight, rounded and state,
  // before and after the update.
  View bit_sums;
};

// Second half of a rule over whole matrices. The update of the rule leaves a matrix to
// orthogonalise, or the like, in UpdateOperands::gradient. One rank computes its direction. The
// ranks that own its elements apply it by apply_direction().
struct MatrixRule {
  // f32 elements of memory that `direction` needs for one matrix
  Index (*scratch)(Index rows, Index columns);
  // Replaces each matrix by the direction of its update.
  // - matrices: [rows, columns] f32
  // - squares: [number of matrices] f64, memory for sums of squares
  // - scratch: [n] f32, where n is the largest scratch(rows, columns) of the matrices
  void (*direction)(Device& device, std::span<const View> matrices, View squares, View scratch);
};

// An update rule.
struct UpdateRule {
  std::string_view name;     // value of train.optimizer
  std::string_view meaning;  // in the help of train.optimizer
  std::span<const StateTensor> state;
  // Updates the state and the weights. If the rule has a MatrixRule, it updates the state, and
  // replaces the gradient by the operand of MatrixRule::direction.
  // If clip_coefficient is NaN, nothing changes. With a MatrixRule, bit_sums[0] alone is added to;
  // apply_direction() adds to bit_sums[1].
  void (*update)(Device& device, const UpdateOperands& operands);
  const MatrixRule* matrix_rule = nullptr;  // nullptr if elements are updated one by one
};

// Returns the table of update rules.
std::span<const UpdateRule> update_rules();
inline const UpdateRule& update_rule(Optimizer optimizer) {
  return update_rules()[static_cast<std::size_t>(optimizer)];
}

// weight -= learning rate * (direction + weight decay * weight)
// direction: [n] f32 or bf16, of the elements of `x`. If clip_coefficient is NaN, nothing changes.
// bit_sums[1] += the sums of the bits afterwards.
void apply_direction(Device& device, const UpdateOperands& x, ConstView direction);

// Adds the sums of the bits of weight, rounded and state to bit_sums[which], if it is not empty.
void add_bit_sums(Device& device, const UpdateOperands& x, Index which);

// Returns the numbers of UpdateOperands::step_scalars: the learning rate, and the bias corrections
// 1 - beta1^step and 1 - beta2^step (Kingma and Ba, "Adam", 2015). All other hyperparameters are
// the same in each step. step: from 1.
std::array<float, 3> step_scalars(const Hyperparameters& hyperparameters, double lr, Index step);

}  // namespace sy
