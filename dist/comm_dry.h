// Communicator of one rank without peers: records the bytes that it would send and receive.
// Serves planning. make_comm_dry in dist/comm.h makes one.
// An all_to_all of i32 (row counts) up to Device::read_limit bytes receives from each rank what
// this rank sends to itself. The root of a gather receives a copy of its own bytes from each rank.
// Other collectives leave their output unchanged.
#pragma once

#include <compare>
#include <map>
#include <string_view>

#include "dist/comm.h"

namespace sy {

// A recorded collective: kind, purpose and bytes.
struct DryTransfer {
  Collective kind;
  std::string_view subphase;  // Phase::subphase: "dispatch", "combine", "batch norm", or empty
  Index sent = 0;             // bytes to other ranks, counted as in Traffic
  Index received = 0;         // bytes from other ranks
  Index buffer = 0;           // reduced, gathered or broadcast bytes of all roots; otherwise 0
  Index roots = 0;            // number of roots in one call of broadcast or reduce
  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm
  auto operator<=>(const DryTransfer&) const = default;
};

// The group of a rank after a split: its size, and the number of the rank in it.
struct SplitRank {
  int size = 0, rank = 0;
};
// Returns the group of `rank` out of `size` ranks. color: that of Comm::split().
SplitRank split_rank(const std::function<int(int rank)>& color, int size, int rank);

// Returns the number of calls of each recorded collective.
// Empty for communicators that are not dry, and for a group of one rank.
std::map<DryTransfer, Index> dry_transfers(const Comm& comm);

}  // namespace sy
