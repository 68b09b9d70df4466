// Facts about MPI in this process, for reports.
#pragma once

#include <string>

namespace sy {

struct MpiInfo {
  std::string library;     // "Open MPI v4.1.4"
  std::string threads;     // thread level of MPI; empty if MPI is not initialized
  std::string cuda_aware;  // support for device buffers: yes, no, or unknown
  int started = 0;         // number of processes according to the launcher; 0: no launcher
};
MpiInfo mpi_info();

}  // namespace sy
