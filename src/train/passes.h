// The order of a step's passes: a schedule is a list, which whoever trains walks through.
#pragma once

#include <vector>

#include "kernels/tensor.h"

namespace sy {

struct PassCall {
  enum class Half { forward, backward } half;
  Index micro_batch;
  bool operator==(const PassCall&) const = default;
};

// Both halves of every micro-batch, first in, first out, with at most `in_flight` (at least 1) of them between their halves:
// as many forward passes to begin with, then a backward and a forward in turn (1F1B; Narayanan et al., "Efficient
// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021). Micro-batch i may use slot i % in_flight.
std::vector<PassCall> one_forward_one_backward(Index micro_batches, Index in_flight);

}  // namespace sy
