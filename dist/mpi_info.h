// MPI as this process finds it, for reports.
#pragma once

#include <string>

#include "kernels/tensor.h"

namespace sy {

struct MpiInfo {
  std::string library;     // "Open MPI v4.1.4"
  std::string threads;     // the level that MPI grants; empty: MPI is not started, as in a process started alone
  std::string cuda_aware;  // whether it takes device buffers: yes, no, or unknown
  int started = 0;         // processes that the launcher says it has started together; 0: there is none
};
MpiInfo mpi_info();

// What this rank and others of its machine share (dist/window.h).
struct SharedMemory {
  int ranks = 1;        // that share a window, this one included
  Index bytes = 0;      // of the window
  std::string missing;  // why there is none where there are several ranks
};
inline SharedMemory shared_memory;  // Runtime sets it

}  // namespace sy
