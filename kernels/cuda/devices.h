// The GPUs that this process sees: the choice of a rank's GPU, and facts for plans and reports. For
// builds without CUDA, too.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace sy::cuda {

constexpr Index logits_chunk = Index{256} << 20;  // see Device::logits_chunk

// The CUDA number of a rank's device, or the reason why it has no device.
struct Choice {
  int device = -1;
  std::string missing;  // the reason; empty if there is a device
  bool broken = false;  // there is a driver that does not work with this build
};
// local_rank: number of this process among those of the machine. Processes use the devices
// round-robin.
Choice choose_device(int local_rank);

struct Gpu {
  std::string name, id;    // id: see Device::device_id
  std::string capability;  // "9.0"
  Index bytes = 0;
  std::vector<std::string> peers;  // ids of the devices with direct peer access

  // Results of a test of the device. A test allocates some hundred MB of device memory until the
  // process ends.
  bool tried = false;
  Index free_bytes = 0;
  std::string kernels;  // kernels of the build that it runs: "compiled for 9.0"
  std::string error;    // reason why it is unusable; empty if it is usable
};

// All devices in CUDA's order, untried and without peers. Allocates no device memory.
std::vector<Gpu> visible_devices();
// All devices in CUDA's order. If it is empty, choose_device gives the reason. Each rank tests its
// own device, and its share of the devices that belong to no rank of the machine.
std::vector<Gpu> find_devices(int local_rank, int local_ranks);

// Returns the joules that a GPU has used since its driver was loaded, by NVIDIA's management
// library (NVML). Empty if NVML is missing or does not know the GPU, or if the GPU is older than
// Volta.
// Not defined in builds without CUDA. device_id: see Device::device_id.
std::optional<double> energy_joules(const std::string& device_id);

// The version of a library when the program was compiled, and of the one that is loaded now; both
// empty in a build without CUDA.
struct LibraryVersions {
  std::string built, loaded;  // "13.0.2"
};

struct Versions {
  // Compute capabilities that the kernels were compiled for: "8.0, 9.0"; empty without CUDA
  std::string kernels;
  std::string runtime;  // version of the CUDA runtime, which is linked into this build: "13.0"
  std::string driver;   // newest CUDA that the driver supports; empty without a driver
  LibraryVersions cublas;
};
Versions versions();

}  // namespace sy::cuda
