// From every rank's gradients to every rank's new weights (ZeRO-1, Rajbhandari et al., 2020):
// reduce-scatter the gradients, clip by the global norm, AdamW on the owned range, all-gather the weights.
//
// Where collectives run beside the backend, each layer's gradients are reduced to their owners as soon as they are complete,
// while backward goes on. Elsewhere that gains nothing, and one reduce-scatter at the end is the faster way.
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
  GradSync(const Mesh& mesh, ParamStore& store);

  // The gradients of a layer's parameters are complete, for this step. Collective.
  void layer_done(Index layer);
  // One optimizer step from the gradients in the store, which are zero afterwards. When their norm is not finite, no weight is
  // changed. `step` counts from 1. The host does not wait for it.
  void step(const Config::Train& train, double lr, Index step);
  // The global gradient norm of the last step before clipping; every parameter counts once. Waits for it.
  double norm() const;

  const Comm* replicas() const { return replicas_.get(); }

 private:
  // kv heads that are fewer than the tensor-parallel ranks: several of these hold the same one, and each sees the gradient
  // from its own query heads alone.
  struct Replicated {
    const Placement* placement;
    GradGroup group;
  };
  void sum_replicas();
  // Elements of a group's gradients become, each at its owner, the sum over the ranks that share it.
  void reduce(GradGroup group, Range flat);
  void reduce_rest(GradGroup group);
  View owned_gradients(GradGroup group);  // [n / shards]
  // squares_ += those of the owned range.
  void add_squares(GradGroup group);
  // AdamW on the owned ranges, and the new weights to all who use them.
  void update(const Config::Train& train);

  const Mesh& mesh_;
  ParamStore& store_;
  std::vector<Replicated> replicated_;
  std::vector<std::array<Range, num_grad_groups>> layers_;  // where the gradients of each layer's parameters lie
  std::unique_ptr<Comm> replicas_;  // the ranks that hold the same kv heads; none where nothing is replicated
  std::array<std::vector<Range>, num_grad_groups> reduced_;  // of this step, from the last to the first
  Tensor squares_;                                           // [1] f64
  Tensor factor_, rates_;                                    // [1], [3] of Backend::adamw
};

}  // namespace sy
