// Requirements of layouts and devices on a configuration.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/layout.h"
#include "src/config.h"

namespace sy {

class Comm;    // dist/comm.h
class Device;  // kernels/device.h

// A size of [parallel]: its key, its name in the short text of a layout, and its members.
struct LayoutAxis {
  std::string_view key, name;
  Index Config::Parallel::*configured;
  int Layout::*size;
};
constexpr LayoutAxis layout_axes[] = {
    {"parallel.tp", "tp", &Config::Parallel::tp, &Layout::tp},
    {"parallel.ep", "ep", &Config::Parallel::ep, &Layout::ep},
    {"parallel.etp", "etp", &Config::Parallel::etp, &Layout::etp},
    {"parallel.ranks_per_node", "node", &Config::Parallel::ranks_per_node, &Layout::ranks_per_node},
};

// All layouts of this many ranks that fit the model and the batch, sorted by tp, ep and etp.
// If `ranks_per_node` is greater than 1, a layout whose expert group spans nodes occurs
// twice: with flat and with hierarchical dispatch.
std::vector<Layout> layouts_of(const Config& config, int ranks, int ranks_per_node = 1);
// Reads the file moe.expert_map: [MoE layers][E], the logical expert of each physical expert. Empty
// if no file is set. Throws InputError.
std::vector<std::vector<Index>> read_expert_map(const Config& config);
// Does the same on all ranks. The ranks that reads_itself() names read the file, and the others get
// the text of rank 0 (dist/file_readers.h). Throws CollectiveError, also if the maps differ. All
// ranks must have the same key moe.expert_map. Collective.
std::vector<std::vector<Index>> read_expert_map(Comm& world, const Config& config);
// The first requirement of the layout that the model does not meet. Empty if the layout fits.
std::string layout_problem(const Config& config, const Layout& layout);
// Throws InputError if layout_problem() is not empty. The error lists layouts that fit.
void check_config_for_layout(const Config& config, const Layout& layout);
// Opens the backend of this name. Throws InputError if it is unavailable. `setting` is the source
// of the name, for the message. local_rank: index of this rank on its node, which selects the GPU.
std::unique_ptr<Device> open_device(std::string_view setting, const std::string& name, int local_rank = 0);
// Throws InputError if the device cannot compute the model. `setting`: see open_device().
void check_config_for_device(std::string_view setting, const Config& config, const Device& device);

}  // namespace sy
