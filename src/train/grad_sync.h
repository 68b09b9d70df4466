// Distributed optimizer (ZeRO-1, Rajbhandari et al., 2020). It reduce-scatters gradients, clips
// them by the global norm, updates the owned range and all-gathers the weights.
//
// With asynchronous collectives, each bucket (the head, a layer) is reduced to its owners while
// backward goes on. The next step's forward waits for the new weights bucket by bucket
// (src/params/fetch.h).
// The reductions of a bucket start once the dispatch of the layer that backward computes next is in
// flight. If that layer has no experts, they start when the bucket of that layer is complete.
// The reason is that NCCL starts collectives in the order in which the host enqueues them
// (NCCL_LAUNCH_ORDER_IMPLICIT). A kernel waits until the one before it has started. All ranks have
// the same order, so there is no deadlock. Reductions enqueued earlier would delay the dispatch
// until they end.
// With synchronous collectives overlap gains nothing: one reduce-scatter and one all-gather at the
// end are faster.
#pragma once

#include <vector>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "src/model/pass.h"
#include "src/params/store.h"

namespace sy {

class GradSync {
 public:
  // Both arguments must outlive this object. If tp ranks hold the same kv heads, mesh.replicas must
  // be joined.
  GradSync(const Mesh& mesh, ParamStore& store);

  // Hooks for the last backward pass of each step. They are collective and must not outlive this
  // object. Without them, step() reduces all gradients.
  BackwardProgress progress();
  // Performs one optimizer step with the gradients in the store, then clears them. Collective. The
  // host does not wait for the result.
  // - step: counts from 1
  // - If the norm is not finite, weights and optimizer state stay as they are.
  // - With asynchronous collectives, new weights are in flight afterwards (ParamStore::need).
  void step(const Config::Train& train, double lr, Index step);
  // Global gradient norm of the last step before clipping; every parameter counts once. Waits for
  // it.
  double norm() const;

 private:
  // Parameters whose gradients are summed over the same ranks.
  struct Group {
    const GroupLayout& layout;
    ParamStore::Buffers& buffers;
    Comm& comm;  // communicator of those ranks
    std::vector<const Placement*> replicated{};
    // of the last complete bucket, not yet reduced; in descending order
    std::vector<Range> complete{};
    std::vector<Range> reduced{};  // reduced in this step, in descending order

    View owned_gradients() const;  // [n / shards]
    // Returns true if collectives of this group overlap with compute.
    bool overlaps() const { return layout.shards > 1 && comm.asynchronous(); }
  };
  void part_done(Index part);
  void start_complete();
  // Sums the gradients of replicated kv heads. Each rank has only those of its own query heads.
  void sum_replicas();
  // Starts the reduction of a range of gradients. Each owner gets the sum over the group's ranks.
  static void reduce(Group& group, Range flat);
  static void reduce_rest(Group& group);
  // Adds the squares of the owned gradients to squares_.
  void add_squares(const Group& group);
  // Applies the update rule of each parameter to the owned ranges. All-gathers the weights of
  // groups that do not overlap.
  void update(const Config::Train& train);

  const Mesh& mesh_;
  ParamStore& store_;
  Backend& backend_;
  PreparedWeights& prepared_;
  std::vector<Group> groups_;
  Tensor squares_;         // [1] f64
  Tensor factor_, rates_;  // operands of Backend::adamw: [1], [3]
};

}  // namespace sy
