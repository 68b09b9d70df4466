// From every rank's gradients to every rank's new weights (ZeRO-1, Rajbhandari et al., 2020):
// reduce-scatter the gradients, clip by the global norm, AdamW on the owned range, all-gather the weights.
#pragma once

#include <array>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "src/params/store.h"

namespace sy {

// The ranks that share a group's gradient.
Comm& comm_of(const Mesh& mesh, GradGroup group);

class GradSync {
 public:
  // Collective.
  GradSync(const Mesh& mesh, ParamStore& store, Arena& scratch);

  // One optimizer step from the gradients in the store, which are zero afterwards. Returns the global gradient norm before
  // clipping; every parameter counts once. When it is not finite, no weight is changed. `step` counts from 1.
  double step(const Config::Train& train, double lr, Index step);

  const Comm* replicas() const { return replicas_.get(); }

 private:
  // kv heads that are fewer than the tensor-parallel ranks: several of these hold the same one, and each sees the gradient
  // from its own query heads alone.
  struct Replicated {
    const Placement* placement;
    GradGroup group;
  };
  void sum_replicas();
  double owned_squares(GradGroup group, ConstView owned);

  const Mesh& mesh_;
  ParamStore& store_;
  Arena& scratch_;
  std::vector<Replicated> replicated_;
  std::unique_ptr<Comm> replicas_;  // the ranks that hold the same kv heads; none where nothing is replicated
};

}  // namespace sy
