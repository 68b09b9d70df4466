// Debug check that all ranks of a communicator make the same calls:
// SWITCHYARD_COMPARE=1 on any rank.
// Before each collective its ranks gather the fingerprints of their calls. If they differ, all
// ranks throw a Failure that names both calls, instead of a hang or meaningless numbers. If a rank
// makes no call at all, the watchdog (dist/watchdog.h) reports the calls of the waiting ranks.
#pragma once

#include <span>
#include <string>

#include "dist/comm.h"

namespace sy {

// Fingerprint of a rank's next collective. It has a fixed size, so that ranks whose calls differ
// can still exchange it.
struct CollectiveFingerprint {
  Index rank;      // in the world
  char text[184];  // "an all-reduce of 16 bytes in the forward pass of layer 2", truncated
};

// Describes the first difference between the fingerprints of P ranks. Empty if they agree.
// The array `rows` is [P, 2, P]. It has the numbers of rows in an all-to-all: for each rank, those
// it sends to each rank, then those it expects from each rank. It is zero for other collectives.
std::string first_difference(std::span<const CollectiveFingerprint> fingerprints, std::span<const Index> rows);

// Throws Failure on all ranks of `comm` if their next collectives differ. Collective over `comm`.
// call: "an all-reduce of 16 bytes". Messages append the current phase (dist/phase.h), without its
// step.
// send, receive: rows of an all-to-all to and from each rank; empty for other collectives.
// No-op if there are no peers or the communicator is dry.
void check_fingerprints(Comm& comm, const std::string& call, std::span<const Index> send = {},
                        std::span<const Index> receive = {});

}  // namespace sy
