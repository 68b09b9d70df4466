// Energy of GPUs, by NVIDIA's management library. The driver brings it, and it is loaded at its
// first use.
#pragma once

#include <optional>
#include <string>

namespace sy::cuda {

// Returns the joules that a GPU has used since its driver was loaded. Empty if NVML is missing or
// does not know the GPU, or if the GPU is older than Volta. device_id: see Device::device_id.
std::optional<double> energy_joules(const std::string& device_id);

}  // namespace sy::cuda
