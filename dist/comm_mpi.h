// Collectives on host buffers, by shared memory within a machine and by MPI messages otherwise.
// Ranks of one machine share a window (dist/shared_memory_transport.h). Without a window, all data
// goes by MPI.
// In a group with ranks on several machines:
//   all-to-all           rows go directly to each rank
//   reductions           each rank sends every block to the rank that sums it, in rank order. Sums
//                        per machine first would send less, but their order would depend on the
//                        placement of the ranks.
//   all-gather           a block goes once to each other machine. Its receiver there shares it with
//                        the other ranks. The sums of an all-reduce are gathered in this way.
//   broadcast, barrier, eager all-reduce, all-gather of small blocks    by functions of MPI
//
// Sums in trees (AllReduceAlgorithm, blocks_in_tree) and gathers of texts have one message for each
// edge of a binary tree, within a machine too.
// The watchdog (dist/watchdog.h) ends the job if a call waits too long.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "dist/comm.h"

namespace sy {

class SharedMemoryTransport;

// Throws Failure with MPI's error text if `code` is an error. what: the MPI function.
void check_mpi(int code, const char* what);

// Returns a communicator over `comm`. Collective. context: of this rank.
// owned: it frees `comm` in its destructor. transport: nullptr if there is none.
std::unique_ptr<Comm> make_comm_mpi(std::shared_ptr<RankContext> context, MPI_Comm comm, bool owned,
                                    std::shared_ptr<SharedMemoryTransport> transport);

}  // namespace sy
