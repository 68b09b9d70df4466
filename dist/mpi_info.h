// Facts about MPI in this process, for reports.
#pragma once

#include <string>

#include "kernels/tensor.h"

namespace sy {

struct MpiInfo {
  std::string library;     // "Open MPI v4.1.4"
  std::string threads;     // thread level of MPI; empty if MPI is not initialized
  std::string cuda_aware;  // support for device buffers: yes, no, or unknown
  int started = 0;         // number of processes according to the launcher; 0: no launcher
};
MpiInfo mpi_info();

// Shared memory of this rank and other ranks of its machine (dist/shared_memory_transport.h).
struct SharedMemory {
  int ranks = 1;        // number of ranks that share the window, including this one
  Index bytes = 0;      // size of the window
  std::string missing;  // reason if several ranks have no window; otherwise empty
};
inline SharedMemory shared_memory;  // set by Runtime

}  // namespace sy
