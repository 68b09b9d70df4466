// Debug check that all ranks of a communicator make the same calls:
// SWITCHYARD_COMPARE=1 on any rank.
// Before each collective its ranks gather the descriptions of their calls. If they differ, all
// ranks throw a Failure that names both calls, instead of a hang or meaningless numbers. If a rank
// makes no call at all, the watchdog (dist/watchdog.h) reports the calls of the waiting ranks.
#pragma once

#include <span>
#include <string>

#include "dist/comm.h"

namespace sy {

// State of the check.
struct Comparing {
  bool on = false;  // equal on all ranks
  int rank = 0;     // rank of this process in the world
};
inline Comparing comparing;  // set by Runtime

// Fingerprint of a rank's next collective. It has a fixed size, so that ranks whose calls differ
// can still exchange it.
struct Call {
  Index rank;       // in the world
  char words[184];  // "an all-reduce of 16 bytes in the forward pass of layer 2", truncated
};

// Describes the first difference between the calls of P ranks; empty if they agree.
// Rows has the shape [P, 2, P]: rows of an all-to-all that each rank sends to each rank, and
// expects from each rank. It is zero for other collectives.
std::string difference(std::span<const Call> calls, std::span<const Index> rows);

// Throws Failure on all ranks of `comm` if their next collectives differ. Collective over `comm`.
// what: "an all-reduce of 16 bytes".
// The current activity (dist/activity.h) is appended, without its step.
void compare(const Comm& comm, const std::string& what, std::span<const Index> send = {},
             std::span<const Index> receive = {});

}  // namespace sy
