// Parameter all-gather of ZeRO-1: broadcasts updated weights from their owners, during the next
// forward. It requires asynchronous collectives. It works bucket by bucket (ParamSpec::part) in the
// order of forward: while one bucket computes, the weights of the next one are in flight.
#pragma once

#include <vector>

#include "dist/comm.h"

namespace sy {

struct GroupLayout;

class WeightFetch {
 public:
  struct Group {
    const GroupLayout* layout;
    View weights;  // [n] the updates of this rank's own range must be enqueued before begin()
    Comm* comm;    // the ranks along the group's axes; asynchronous
  };
  // Starts the all-gather with the first bucket. The previous one must be finished. Collective.
  void begin(std::vector<Group> groups);
  // Compute enqueued after this call waits for the new weights of all buckets up to `part`.
  // Starts the next bucket. Collective if an all-gather is in flight; otherwise a no-op.
  void need(Index part);
  // Does the same for all buckets.
  void finish();
  bool under_way() const { return !groups_.empty(); }

 private:
  void start(Index part);

  std::vector<Group> groups_;  // empty if no all-gather is in flight
  Index started_ = 0;          // number of buckets that were started
  Index there_ = 0;            // number of buckets that compute waits for
};

}  // namespace sy
