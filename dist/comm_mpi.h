// Collectives over MPI, on host buffers.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "dist/comm.h"

namespace sy {

// Owns `comm` when told so, and frees it.
std::unique_ptr<Comm> make_comm_mpi(MPI_Comm comm, bool owned);

}  // namespace sy
