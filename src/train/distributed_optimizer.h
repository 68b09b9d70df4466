// Distributed optimizer (ZeRO-1, Rajbhandari et al., 2020). It reduce-scatters gradients, clips
// them by the global norm, updates the owned range and all-gathers the weights. A rule over whole
// matrices also gathers each matrix to one owner (src/train/matrix_update.h).
//
// With asynchronous collectives, each bucket (the head, a layer) is reduced to its owners while
// backward goes on. The next step's forward waits for the new weights bucket by bucket
// (src/params/param_all_gather.h).
// The reductions of a bucket start once the dispatch of the layer that backward computes next is in
// flight. If that layer has no experts, they start when the bucket of that layer is complete.
// The reason is that device collectives start in the order in which the host enqueues them. A
// kernel waits until the one before it has started. All ranks have the same order, so there is no
// deadlock. Reductions enqueued earlier would delay the dispatch until they end.
// With synchronous collectives overlap gains nothing: one reduce-scatter and one all-gather at the
// end are faster.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dist/mesh.h"
#include "src/model/context.h"
#include "src/params/store.h"
#include "src/train/matrix_update.h"

namespace sy {

// Optimizer of the parameters of one ParamStore.
class DistributedOptimizer {
 public:
  // Both objects must outlive this one. The replicas of the parameters must be joined
  // (join_replicas).
  // - max_logits: Engine::max_logits(). By them, step() scales queries and keys (QK-clip), and it
  //   resets them. Empty: no QK-clip.
  DistributedOptimizer(const Mesh& mesh, ParamStore& store, View max_logits = {});

  // Hooks for the last backward pass of each step. They are collective and must not outlive this
  // object. Without them, step() reduces all gradients.
  BackwardHooks backward_hooks() {
    return {[this](Index bucket) { mark_bucket_ready(bucket); }, [this] { reduce_ready_buckets(); }};
  }
  // Performs one optimizer step with the gradients in the store, then clears them. Collective. The
  // host does not wait for the result, unless a rule is over whole matrices.
  // - step: counts from 1
  // - train: hyperparameters; lr: learning rate of this step
  // - limit: the largest gradient norm with which weights and state change
  // - If the gradient norm is not finite or above `limit`, weights and optimizer state stay as they
  //   are.
  // - With asynchronous collectives, new weights are in flight afterwards
  //   (ParamStore::wait_for_bucket).
  void step(const Config::Train& train, double lr, Index step, double limit = std::numeric_limits<double>::infinity());
  // Returns the global gradient norm of the last step before clipping. Waits for the device.
  // Every parameter counts once.
  double gradient_norm() const;
  // Returns whether the last step left weights and state as they are. Waits for the device.
  bool skipped() const;
  // Lets the next steps measure the gradient norm of each parameter, or not.
  void measure_params(bool measures) { measures_params_ = measures; }
  // Returns the norms of the last step that measured them, before clipping: [ParamStore::specs].
  // The norm of a frozen parameter is 0. Waits for the device.
  std::vector<double> param_norms() const;
  // Lets the next steps keep digests of the weights and of the optimizer state that this rank owns
  // (run.memory_check), or not. Frozen weights have none.
  void check_memory(bool checks);
  // Describes the first parameter whose owned weights or state changed between the last two
  // updates. Empty if there is none, or without digests. Call it once after each step. Waits for
  // the device.
  std::string changed_in_last_step();
  // The same for changes since the last update. Reads all owned memory.
  std::string changed_since_last_step();
  // Names and values of operands of the last update that all ranks hold, besides the norm.
  std::vector<std::pair<std::string, ConstView>> shared_operands() const {
    return {{"the clip coefficient", clip_coefficient_}, {"the learning rates", step_scalars_}};
  }

 private:
  // Parameters of one update rule whose gradients are summed over the same ranks. Frozen parameters
  // have no such group: nothing is reduced, updated or gathered for them.
  struct Group {
    const GroupLayout& layout;
    ParamStore::Buffers& buffers;
    Comm& comm;  // communicator of those ranks
    const UpdateRule& rule;
    std::unique_ptr<MatrixUpdate> matrices{};  // nullptr if the rule updates elements
    std::vector<const ParamSlice*> kv_replicated{};
    Index first_range = 0;  // number of owned ranges of the groups before
    // Ranges of the last complete bucket, not yet reduced; in descending order.
    std::vector<Range> ready{};
    ComputePoint computed{};       // the compute of the gradients in `ready`
    std::vector<Range> reduced{};  // reduced in this step, in descending order
    Work in_flight{};              // reductions that compute does not wait for yet

    // [n / shards]
    View owned_gradients() const { return layout.owned_of(buffers.grads); }
    // Returns true if collectives of this group overlap with compute.
    bool overlaps() const { return layout.shards > 1 && comm.asynchronous(); }
  };
  // Marks the gradients of a bucket as complete, and reduces those of the previous bucket.
  void mark_bucket_ready(Index bucket);
  // Starts the reductions of all complete gradients.
  void reduce_ready_buckets();
  // Sums the gradients of replicated kv heads. Each rank has only those of its own query heads.
  void sum_kv_replicas();
  // Starts the reduction of a range of gradients that are computed before `computed`.
  // Each owner gets the sum over the group's ranks.
  static void reduce(Group& group, Range flat, ComputePoint computed);
  // Reduces all gradients of a group that are not reduced yet. Later compute waits for all of them.
  static void reduce_remaining(Group& group);
  // Adds the squares of the owned gradients to squares_.
  void add_squares(const Group& group);
  // Sets param_squares_ to the squares of all gradients of each parameter. Collective.
  void sum_param_squares();
  // Calls f with each owned range of gradients of a group that this rank counts in a norm, and with
  // the spec of the parameter.
  void for_counted(const Group& group, const std::function<void(const ParamSpec*, ConstView)>& f) const;
  // Applies the update rule of each group to its owned range, and calls finish_update().
  // After the first half of a rule over whole matrices, the gradient memory holds the directions.
  void update(const Config::Train& train);
  // Calls f with the operands of the update of each parameter's owned range.
  using OwnedUpdate = std::function<void(const OwnedRange&, const UpdateOperands&)>;
  void for_owned(const Group& group, const Config::Train& train, const OwnedUpdate& f);
  // Returns the sums of bits before (0) or after (1) the last update: [owned ranges]. Waits for the
  // device.
  std::vector<std::int32_t> bit_sums(Index which) const;
  // Describes the first owned range of which `sums` differs from digests_.
  // sums: [owned ranges] sums of bits
  std::string changed(const std::vector<std::int32_t>& sums) const;
  // Scales the owned ranges of queries and keys (ops::QkClip), and resets the maximum logits.
  void clip_queries_and_keys(const Config::Train& train);
  // Clips queries and keys, invalidates packed weights, all-gathers the weights of groups that do
  // not overlap, and clears all gradients.
  void finish_update(const Config::Train& train);

  const Mesh& mesh_;
  ParamStore& store_;
  Device& device_;
  PackedWeights& packed_weights_;
  std::vector<Group> groups_;
  View max_logits_;       // [query heads of all layers], or empty
  Tensor squares_;        // [1] f64
  Tensor param_squares_;  // [specs] f64
  bool measures_params_ = false;
  std::vector<double> lr_factors_;          // each value of ParamSpec::lr_factor
  Tensor clip_coefficient_, step_scalars_;  // [1], [lr_factors_, 3]: UpdateOperands
  Tensor bit_sums_;                         // [owned ranges, 2] i32: UpdateOperands; or empty
  std::vector<std::int32_t> digests_;       // [owned ranges] after the last update; or empty
};

}  // namespace sy
