#pragma once

#include "src/config.h"
#include "src/params/specs.h"

namespace sy {

// Bytes that a rank needs, before anything is allocated. Weights, gradients and optimizer state follow from the specs and
// are exact. Activations come from a training step of the same model on the dry backend, with every expert equally
// loaded and nothing dropped: exact where routing is, otherwise what a balanced router takes.
struct MemoryPlan {
  Index weights = 0;  // with the forms that the backend multiplies by (PreparedWeights)
  Index gradients = 0;
  Index optimizer = 0;  // m, v, and master weights
  Index activations = 0;
  Index parameters() const { return weights + gradients + optimizer; }
  Index total() const { return parameters() + activations; }
};
// Parameters alone, without prepared forms of weights.
MemoryPlan plan_parameters(const std::vector<ParamSpec>& specs, DType dtype, const Layout& layout, int rank);
// backend: that it is planned for.
MemoryPlan plan_memory(const Config& config, Index vocab, const Layout& layout, int rank, const Backend& backend);

// The bytes that the activations' arenas are to take on `backend`, which `ranks_here` ranks share: all that the parameters
// leave, and on a host, where arenas may grow, what is planned. connected: whether NCCL and cuBLAS have taken their memory
// already (src/train/room.h). Throws InputError where training does not fit, naming the parts and the settings that make it
// fit.
Index arena_bytes(const Config& config, Index vocab, const Layout& layout, int rank, const Backend& backend,
                  int ranks_here, bool connected);

// Throws the InputError of a training that needs more than `available` bytes. It names the parts, and the
// settings that make it fit. reserve: what `available` leaves out for libraries. machine: the name of
// the machine that is meant; empty if it is this one. device: the memory is a GPU's.
[[noreturn]] void refuse_memory(const Config& config, const MemoryPlan& plan, Index available, Index reserve,
                                const std::string& machine, bool device);

// Does `work`; where memory runs out in it, the error also says what to do about it.
template <class Work>
auto with_advice(const std::string& advice, Work work) {
  try {
    return work();
  } catch (const NoMemory& e) {
    fail("{}: {}", e.what(), advice);
  }
}
// What to set where training runs out of memory.
std::string memory_advice(const Config& config);

}  // namespace sy
