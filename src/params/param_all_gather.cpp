#include "src/params/param_all_gather.h"

#include "dist/phase.h"
#include "src/params/store.h"

namespace sy {

void ParamAllGather::start(const std::vector<Group>& groups) {
  SY_ASSERT(!in_flight(), "the last parameter all-gather is not finished");
  if (groups.empty()) return;
  for (const Group& group : groups) groups_.push_back({group, group.comm->compute_point()});
  started_buckets_ = ready_buckets_ = 0;
  start_bucket(0);
}

void ParamAllGather::start_bucket(Index bucket) {
  const ScopedPhase phase(groups_.front().group.comm->rank_context(), "new weights");
  for (; started_buckets_ <= bucket; ++started_buckets_)
    for (auto& [group, updated, in_flight] : groups_) {
      const Range flat = group.layout->buckets[static_cast<std::size_t>(started_buckets_)];
      in_flight.join(group.comm->start_broadcast(group.layout->by_owner(group.weights, flat), updated));
    }
}

void ParamAllGather::wait_for_bucket(Index bucket) {
  if (!in_flight() || bucket < ready_buckets_) return;
  const Index last = std::ssize(groups_.front().group.layout->buckets) - 1;
  start_bucket(bucket);
  // Wait before the next start_bucket(), so that compute does not wait for the next bucket.
  for (State& state : groups_) state.in_flight.wait();
  ready_buckets_ = bucket + 1;
  if (bucket == last)
    groups_.clear();
  else
    start_bucket(bucket + 1);
}

void ParamAllGather::finish() {
  if (in_flight()) wait_for_bucket(std::ssize(groups_.front().group.layout->buckets) - 1);
}

}  // namespace sy
