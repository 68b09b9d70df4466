// New weights on their way from the ranks that have updated them to all who compute with them: the second half of ZeRO-1 where
// collectives run beside the backend. They come part by part (ParamSpec::part) in the order of forward: while one part
// computes, the next one's weights travel.
#pragma once

#include <vector>

#include "dist/comm.h"

namespace sy {

struct GroupLayout;

class WeightFetch {
 public:
  struct Group {
    const GroupLayout* layout;
    View weights;  // [n] of which each rank of comm has updated what it owns, or has given the backend what does so
    Comm* comm;    // the ranks along the group's axes; asynchronous
  };
  // Of groups whose former weights are whole. The first part's are started. Collective.
  void begin(std::vector<Group> groups);
  // What the backend is given from now on sees the new weights of the parts up to this one; those of the next part are started.
  // Collective where weights are under way.
  void need(Index part);
  // The same of all parts.
  void finish();
  bool under_way() const { return !groups_.empty(); }

 private:
  void start(Index part);

  std::vector<Group> groups_;  // none: nothing is under way
  Index started_ = 0;          // parts
  Index there_ = 0;            // parts that the backend waits for
};

}  // namespace sy
