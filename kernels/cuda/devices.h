// The GPUs that this process sees: which one a rank takes, and what reports say of each.
#pragma once

#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace sy::cuda {

// The number, as CUDA counts, of the device that a rank takes, or why there is none.
struct Choice {
  int device = -1;
  std::string missing;  // why there is none; empty where there is one
  bool broken = false;  // whether there is a driver that does not serve this build
};
// local_rank is this process's number among those of its machine, which take its devices in turn.
Choice choose_device(int local_rank);

struct Device {
  std::string name, id;    // id: as Backend::device_id
  std::string capability;  // "9.0"
  Index bytes = 0;
  std::vector<std::string> peers;  // ids of the devices whose memory it reaches directly

  // What is known once the device has been tried. Trying takes some hundred MB of its memory until the process ends.
  bool tried = false;
  Index free_bytes = 0;
  std::string kernels;  // which kernels of the build it runs: "compiled for 9.0"
  std::string error;    // why it cannot be used; empty where it can
};

// All devices in CUDA's order; there are none where choose_device says why. It tries the device that local_rank takes,
// and this rank's share of the devices that none of the local_ranks takes.
std::vector<Device> find_devices(int local_rank, int local_ranks);

// The version of a library when the program was compiled, and of the one that is loaded now; both empty
// in a build without CUDA.
struct LibraryVersions {
  std::string built, loaded;  // "13.0.2"
};

struct Versions {
  std::string kernels;  // compute capabilities that the kernels were compiled for: "8.0, 9.0"; empty without CUDA
  std::string runtime;  // version of the CUDA runtime, which is linked into this build: "13.0"
  std::string driver;   // newest CUDA that the driver supports; empty without a driver
  LibraryVersions cublas;
};
Versions versions();

}  // namespace sy::cuda
