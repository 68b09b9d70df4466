// The order of a step's forward and backward passes. A schedule is a list that the trainer
// executes.
#pragma once

#include <vector>

#include "kernels/tensor.h"

namespace sy {

struct ScheduledPass {
  enum class Direction { forward, backward } direction;
  Index micro_batch;
  bool operator==(const ScheduledPass&) const = default;
};

// The 1F1B schedule (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
// Clusters Using Megatron-LM", 2021).
// At most `in_flight` (at least 1) micro-batches are between their forward and their backward,
// first in, first out. The schedule starts with as many forward passes, then alternates backward
// and forward. Micro-batch i may use slot i % in_flight.
std::vector<ScheduledPass> one_forward_one_backward(Index micro_batches, Index in_flight);

}  // namespace sy
