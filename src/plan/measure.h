// A machine as its ranks measure it, all of them at the same time: `switchyard doctor --machine FILE`.
#pragma once

#include <functional>

#include "dist/comm.h"
#include "kernels/backend.h"
#include "src/plan/machine.h"

namespace sy {

// Some seconds. Every figure is the median of repeated calls, averaged over the ranks. What is fast and slow follows from the sizes of a
// small model, some thousand tokens and a width of some hundred. memory: bytes of a node where the backend is on the host; a
// device says itself what it has. Throws InputError where there is one rank, as links are measured too. Collective.
// progress: called on every rank after each figure.
Machine measure_machine(Comm& world, Backend& backend, const std::string& name, double memory,
                        const std::function<void(Index done, Index total)>& progress = {});

}  // namespace sy
