#include "src/params/fetch.h"

#include "dist/activity.h"
#include "src/params/store.h"

namespace sy {

void WeightFetch::begin(std::vector<Group> groups) {
  SY_ASSERT(!under_way(), "new weights before the former ones are whole");
  if (groups.empty()) return;
  groups_ = std::move(groups);
  started_ = there_ = 0;
  for (const Group& group : groups_) group.comm->mark();
  start(0);
}

void WeightFetch::start(Index part) {
  const Doing doing("new weights");
  for (; started_ <= part; ++started_)
    for (const Group& group : groups_)
      group.comm->start_broadcast(
          group.layout->by_owner(group.weights, group.layout->parts[static_cast<std::size_t>(started_)]));
}

void WeightFetch::need(Index part) {
  if (!under_way() || part < there_) return;
  const Index last = std::ssize(groups_.front().layout->parts) - 1;
  start(part);
  // Wait before the next start(), so that compute does not wait for the next bucket.
  for (const Group& group : groups_) group.comm->wait();
  there_ = part + 1;
  if (part == last)
    groups_.clear();
  else
    start(part + 1);
}

void WeightFetch::finish() {
  if (under_way()) need(std::ssize(groups_.front().layout->parts) - 1);
}

}  // namespace sy
