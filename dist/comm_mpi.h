// Collectives on host buffers: through memory between ranks that share a window (dist/window.h), which are those of one machine,
// and by MPI's messages between all others; where there is no window, all are others. A group with ranks on several machines:
//   all-to-all                  rows go to each rank directly
//   reductions                  each rank sends the parts that others sum, and they sum them in rank order. Summing on each
//                               machine first would send less, and add in an order that depends on who is where.
//   all-gather, what was summed once to each other machine, and from the rank that has it there to all others on it
//   broadcast, barrier, reductions of up to all_reduce_whole bytes    MPI's own, which are trees
// The watchdog (dist/watchdog.h) ends what waits too long.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "dist/comm.h"

namespace sy {

class Window;

// Throws a Failure with MPI's words, where code is an error of `what`.
void check_mpi(int code, const char* what);

// Owns `comm` when told so, and frees it. Collective.
std::unique_ptr<Comm> make_comm_mpi(MPI_Comm comm, bool owned, std::shared_ptr<Window> window);

}  // namespace sy
