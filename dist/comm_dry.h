// A rank among others that do not exist: notes what it would send and receive, for planning. Small things that are gathered
// (row counts) are answered as if every other rank held the same. make_comm_dry in dist/comm.h makes one.
#pragma once

#include <compare>
#include <map>
#include <string_view>

#include "dist/comm.h"

namespace sy {

// One call of a collective, by what its time depends on and what it is for.
struct DryTransfer {
  Collective kind;
  std::string_view part;                                 // dist/activity.h: "dispatch", "combine", or none
  Index sent = 0;                                        // bytes to other ranks, as Traffic counts them
  Index received = 0;                                    // bytes from other ranks
  auto operator<=>(const DryTransfer&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

// How often there was each. Of any other communicator, and of a group of one rank, nothing.
std::map<DryTransfer, Index> dry_transfers(const Comm& comm);

}  // namespace sy
