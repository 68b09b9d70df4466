// The GPUs that this process sees: which one a rank takes, and what reports say of all.
#pragma once

#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace sy::cuda {

// The device that a rank takes, as CUDA numbers them, or why there is none.
struct Choice {
  int device = -1;
  std::string missing;  // empty: there is one
  bool broken = false;  // there is a driver, but it does not serve this build
};
// local_rank: of this process among those of its machine, which take its devices in turn.
Choice choose_device(int local_rank);

struct Device {
  std::string name, id;    // id: as Backend::device_id
  std::string capability;  // "9.0"
  Index bytes = 0;
  std::vector<std::string> peers;  // ids of the devices whose memory it reaches directly

  // Of a device that was tried, which takes some hundred MB of its memory until the process ends.
  bool tried = false;
  Index free_bytes = 0;
  std::string kernels;  // what of the build it runs: "compiled for 9.0"
  std::string error;    // why it cannot be used; empty: it can
};

// All, as CUDA numbers them; none where choose_device says why. Tries the one that local_rank takes, and its share of those
// that none of the local_ranks takes.
std::vector<Device> find_devices(int local_rank, int local_ranks);

struct Versions {
  std::string kernels;  // the compute capabilities that they were compiled for: "8.0, 9.0"; empty: this build has none
  std::string runtime;  // CUDA's, in this build
  std::string driver;   // the newest CUDA that the driver knows; empty: there is no driver
};
Versions versions();

}  // namespace sy::cuda
