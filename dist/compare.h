// A debug option: SWITCHYARD_COMPARE=1 on any rank. Before each collective the ranks of its communicator tell each other what
// they are about to do. Where that differs, all of them throw a Failure that names both sides, in place of a hang or of
// numbers that mean nothing; where some do not come at all, the watchdog (dist/watchdog.h) says what the others are about to do.
#pragma once

#include <span>
#include <string>

#include "dist/comm.h"

namespace sy {

struct Comparing {
  bool on = false;  // the same on all ranks
  int rank = 0;     // of this process in the world
};
inline Comparing comparing;  // Runtime sets it

// What a rank is about to do; as many bytes on every rank, so that ranks which differ can compare them.
struct Call {
  Index rank;       // in the world
  char words[184];  // "an all-reduce of 16 bytes in the forward pass of layer 2", cut off where it is longer
};

// What differs between the P ranks of a communicator, or "". rows: [P, 2, P], of an all-to-all, what each rank sends to each
// and expects from each; else zeros.
std::string difference(std::span<const Call> calls, std::span<const Index> rows);

// what: "an all-reduce of 16 bytes"; what this rank is doing is added (dist/activity.h). Collective over `comm`. Throws where
// the ranks are about to do different things.
void compare(const Comm& comm, const std::string& what, std::span<const Index> send = {},
             std::span<const Index> receive = {});

}  // namespace sy
