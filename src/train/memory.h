// Memory of a rank while it trains: the plan, the sizes of the arenas, and errors with advice.
#pragma once

#include "dist/comm.h"
#include "kernels/arena.h"
#include "src/config.h"
#include "src/params/specs.h"
#include "src/system/host.h"

namespace sy {

// Bytes that a rank needs, computed before anything is allocated.
// Weights, gradients and optimizer state follow from the specs and are exact. Activations come from
// a training step of the same model on the dry device, with equal load of all experts and no
// drops. They are exact without experts. A rank whose experts get more than that load needs more.
struct MemoryPlan {
  Index weights = 0;  // including packed weights (PackedWeights)
  Index gradients = 0;
  Index optimizer = 0;  // state tensors, master weights, memory for whole matrices
  Index saved = 0;      // activations that forward saves for backward, in all slots
  Index scratch = 0;    // activations that live within one function
  // Host memory for the copy of an asynchronous checkpoint (run.async_checkpoint). It is not the
  // device's, and total() excludes it.
  Index checkpoint_copy = 0;
  Index activations() const { return saved + scratch; }
  Index parameters() const { return weights + gradients + optimizer; }
  Index total() const { return parameters() + activations(); }
};
// Plans the parameters only, without packed weights. Pure function.
MemoryPlan plan_parameters(const std::vector<ParamSpec>& specs, DType dtype, const Layout& layout, int rank);
// Plans everything, by a training step on a dry copy of `device`. Allocates none of the memory.
// - device: the device to plan for
// - slots: number of micro-batches that can be in flight
MemoryPlan plan_memory(const Config& config, Index vocab, const Layout& layout, int rank, const Device& device,
                       Index slots = 1);

// Returns the sizes of the activation arenas on `device`, which `ranks_on_device` ranks share.
// On a device their total is all bytes that the parameters and a reserve for libraries leave free.
// The reserve is max(r, 1/32 of the free bytes). r is 512 MiB for one rank. For several ranks r is
// 1 GiB if `warmed_up`, otherwise 4 GiB. The ratio of the arenas is that of the plan. On a host,
// where arenas may grow, they have the planned bytes.
// warmed_up: the device's libraries have already allocated their memory
// (src/train/device_reservation.h).
// Throws InputError if training does not fit. It lists the needs and the settings that reduce them.
ArenaSizes arena_sizes(const Config& config, Index vocab, const Layout& layout, int rank, const Device& device,
                       int ranks_on_device, bool warmed_up, Index slots = 1);

// Checks that the memory of each host suffices for all of its ranks together, and that each memory
// limit of a control group suffices for all ranks in this group.
// - needs: bytes of host memory of this rank: checkpoint_copy, and on the CPU besides it total()
// - host: host_memory() of this rank
//
// Throws CollectiveError with the settings that reduce the needs. Collective.
void check_host_memory(Comm& world, const Config& config, const MemoryPlan& needs, const HostMemory& host);

// Throws the InputError of a training that needs more than `available` bytes. It lists the needs
// and the settings that reduce them. If total() fits, the error names the copy of a checkpoint.
// `reserve` is the number of bytes for libraries that `available` excludes. `machine` names another
// machine; empty if it is this one. `device` is true if the memory is a GPU's.
[[noreturn]] void refuse_memory(const Config& config, const MemoryPlan& plan, Index available, Index reserve,
                                const std::string& machine, bool device);

// Calls `work` and returns its result. If it throws NoMemory, throws a Failure that also has the
// advice.
template <class Work>
auto with_advice(const std::string& advice, Work work) {
  try {
    return work();
  } catch (const NoMemory& e) {
    fail("{}: {}", e.what(), advice);
  }
}
// Returns the settings to change if training runs out of memory.
std::string memory_advice(const Config& config);

}  // namespace sy
