// Hosts and devices of the ranks, and the device and the instruction set that all ranks use.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "kernels/device.h"

namespace sy {

// Returns the name of this host, as of gethostname().
std::string host_name();
// Returns a number that differs between machines, even if their hosts have the same name. It is a
// hash of the name, of the kernel's id of its last start, and of the network namespace.
std::uint64_t machine_id();

// Returns the index of this rank among the ranks of its machine. Collective.
int local_rank(Comm& world);
// Returns the index of this rank among the ranks of its machine with the same device. Collective.
int rank_on_device(Comm& world, const std::string& device);
// Returns the number of ranks of this machine with the same device, including this one. Collective.
int ranks_sharing(Comm& world, const std::string& device);

// Returns the sum of each value over the ranks of this machine; and then, for each key, the sums
// over those of them that also pass this key. The numbers of keys may differ between ranks; those
// of values must be equal. Collective: one reduction and one all-gather.
std::vector<std::vector<Index>> sums_on_machine(Comm& world, std::span<const Index> values,
                                                std::span<const std::string> keys);

// Checks that all ranks have a GPU or none has, and that no two ranks share a GPU.
// With the backend "auto", each rank chooses its device itself, so that they may differ.
// Returns the number of ranks that share this rank's GPU; 1 if the backend is on the host.
// Ranks may share a GPU if DeviceCollectives::shares_devices. Throws CollectiveError. Collective.
int agree_on_devices(Comm& world, const Device& device);

// Makes all ranks use CPU kernels of one instruction set,
// so that results do not depend on the node.
// It is the narrowest set that a rank's processor and $SWITCHYARD_ISA select
// (kernels/cpu/processor.h).
// Throws CollectiveError if a rank can select none. Collective.
void agree_on_isa(Comm& world);

}  // namespace sy
