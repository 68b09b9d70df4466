// Parameter all-gather of ZeRO-1: broadcasts updated weights from their owners, during the next
// forward. It requires asynchronous collectives. It works bucket by bucket (ParamSpec::bucket) in
// the order of forward: while one bucket computes, the weights of the next one are in flight.
#pragma once

#include <vector>

#include "dist/comm.h"

namespace sy {

struct GroupLayout;

// State of one parameter all-gather over several groups of parameters.
class ParamAllGather {
 public:
  // Weights of one group of parameters (GroupLayout), and the communicator of their owners.
  struct Group {
    const GroupLayout* layout;
    View weights;  // [n] the updates of this rank's own range must be enqueued before start()
    Comm* comm;    // the ranks along the group's axes; asynchronous
  };
  // Starts the all-gather with the first bucket. Collective. No-op if `groups` is empty.
  // The previous all-gather must be finished.
  void start(const std::vector<Group>& groups);
  // Compute enqueued after this call waits for the new weights of all buckets up to `bucket`.
  // Starts the next bucket. Collective. No-op if no all-gather is in flight, or if compute waits
  // for this bucket already.
  void wait_for_bucket(Index bucket);
  // Does the same for all buckets.
  void finish();
  // True from start() until compute waits for the last bucket.
  bool in_flight() const { return !groups_.empty(); }

 private:
  struct State {
    Group group;
    ComputePoint updated;  // the updates of the rank's own range
    Work in_flight{};      // broadcasts that compute does not wait for yet
  };
  void start_bucket(Index bucket);

  std::vector<State> groups_;  // empty if no all-gather is in flight
  Index started_buckets_ = 0;  // number of buckets that were started
  Index ready_buckets_ = 0;    // number of buckets that compute waits for
};

}  // namespace sy
