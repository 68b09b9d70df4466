#pragma once

#include "src/config.h"

namespace sy {

// Bytes that a rank needs, before anything is allocated. Weights, gradients and optimizer state follow from the specs and
// are exact. Activations come from a training step of the same model on the dry backend, with every expert equally
// loaded and nothing dropped: exact where routing is, otherwise what a balanced router takes.
struct MemoryPlan {
  Index weights = 0, gradients = 0, optimizer = 0, activations = 0;
  Index total() const { return weights + gradients + optimizer + activations; }
};
MemoryPlan plan_memory(const Config& config, Index vocab, const Layout& layout, int rank);

}  // namespace sy
