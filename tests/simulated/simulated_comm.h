// One rank of a job of any size, in one process. It sees peers that do what it does itself.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/comm.h"

namespace sy::test {

// Collectives of all groups of equal size.
struct GroupCounts {
  Index calls = 0;
  Index messages = 0;  // that this rank sends, or receives if these are more
  Index bytes = 0;     // that this rank sends, or receives if these are more
  Index gathered = 0;  // bytes that this rank receives in its largest gather
};

// A job of which single ranks are simulated. It has what they share, and counts.
struct SimulatedJob {
  int ranks = 1, ranks_per_machine = 8;
  // Returns all ranks' bytes of a gather, by rank, from those of its root.
  std::function<std::vector<std::string>(std::string_view mine, int root)> gathered;
  // Sums a buffer of rank 0 over all ranks. Leaves a buffer unchanged that it does not know.
  std::function<void(View x)> summed;
  std::map<int, GroupCounts> counts;  // by the size of the group
  // Results of the broadcasts and all-reduces over all ranks, in their order. Rank 0 records them,
  // and other ranks repeat them.
  std::vector<std::string> results;
  std::size_t next_result = 0;
};

// Returns the world of a rank. `job` must outlive it and the groups that are split from it.
// - Broadcasts and all-reduces over all ranks have the results of rank 0. SimulatedJob::summed may
//   change those of sums.
// - In smaller groups an all-reduce leaves its buffer unchanged, and a reduce-scatter and an
//   all-to-all give a rank what it has for itself, from every rank.
// - An all-gather of up to four integers over all ranks gives ranks of other machines another first
//   integer.
// - Messages are those of dist/comm_mpi.h without shared memory. A call of MPI for all ranks is
//   taken to have two messages for each level of a binary tree, which depends on the library.
std::unique_ptr<Comm> make_simulated_world(SimulatedJob& job, int rank);

}  // namespace sy::test
