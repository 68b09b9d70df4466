// From every rank's gradients to every rank's new weights (ZeRO-1, Rajbhandari et al., 2020):
// reduce-scatter the gradients, clip by the global norm, update the owned range, all-gather the weights.
//
// Where collectives run beside the backend, the gradients of each part of the model (the head, a layer) are reduced to their
// owners while backward goes on, and its new weights come from there while the next step's forward does (src/params/fetch.h).
// Reductions are started when the next layer's tokens are under way, or, where that has no experts, when it is complete itself,
// since NCCL starts collectives in the order in which the host gives them (NCCL_LAUNCH_ORDER_IMPLICIT: a kernel waits until the
// one given before it has started; the order is the same on all ranks, so none waits for another for ever). Given at once, they
// would hold back these tokens until all reductions before them have ended and the gradients are computed.
// Elsewhere that gains nothing: one reduce-scatter and one all-gather at the end are the faster way.
#pragma once

#include <vector>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "src/model/pass.h"
#include "src/params/store.h"

namespace sy {

class GradSync {
 public:
  // Where ranks of tp hold the same kv heads, mesh.replicas must be joined.
  GradSync(const Mesh& mesh, ParamStore& store);

  // For the last backward pass of each step. Its functions are collective, and must not outlive this.
  BackwardProgress progress();
  // One optimizer step from the gradients in the store, which are cleared afterwards. When their norm is not finite, no weight is
  // changed. `step` counts from 1. The host does not wait for it.
  void step(const Config::Train& train, double lr, Index step);
  // The global gradient norm of the last step before clipping; every parameter counts once. Waits for it.
  double norm() const;

 private:
  // The parameters whose gradients are summed over the same ranks.
  struct Group {
    const GroupLayout& layout;
    ParamStore::Buffers& buffers;
    Comm& comm;  // those ranks
    std::vector<const Placement*> replicated{};
    std::vector<Range> complete{};  // of the part told of last, and marked; from the last to the first
    std::vector<Range> reduced{};   // of this step, likewise

    View owned_gradients() const;  // [n / shards]
    // Whether its collectives run beside what the backend computes.
    bool overlaps() const { return layout.shards > 1 && comm.asynchronous(); }
  };
  void part_done(Index part);
  void start_complete();
  // Ranks that hold the same kv heads see the gradient from their own query heads alone.
  void sum_replicas();
  // Elements of a group's gradients become, each at its owner, the sum over the ranks that share it.
  static void reduce(Group& group, Range flat);
  static void reduce_rest(Group& group);
  // squares_ += those of the owned range.
  void add_squares(const Group& group);
  // The rule of each parameter on the owned ranges, and the new weights to all who use them, where that is not done beside
  // what the backend computes.
  void update(const Config::Train& train);

  const Mesh& mesh_;
  ParamStore& store_;
  Backend& backend_;
  PreparedWeights& prepared_;
  std::vector<Group> groups_;
  Tensor squares_;         // [1] f64
  Tensor factor_, rates_;  // [1], [3] of Backend::adamw
};

}  // namespace sy
