// Measures a machine on all its ranks at the same time: `switchyard doctor --machine FILE`.
#pragma once

#include <functional>

#include "dist/comm.h"
#include "kernels/device.h"
#include "src/plan/machine.h"

namespace sy {

// Measures for some seconds. Collective.
// Every figure is the median of repeated calls, averaged over the ranks. The operands have the
// sizes of a small model: some thousand tokens and a width of some hundred.
//
// memory: bytes of a node if the device is on the host; a GPU reports its own. progress: called
// on every rank after each figure. Throws CollectiveError if there is only one rank, because links
// are measured too.
Machine measure_machine(Comm& world, Device& device, const std::string& name, double memory,
                        const std::function<void(Index done, Index total)>& progress = {});
// Throws that error. Collective.
void check_can_measure(const Comm& world);

}  // namespace sy
