// What `switchyard doctor` goes by: facts that each rank finds out, and the problems that follow from them.
#pragma once

#include <string>
#include <vector>

#include "dist/comm.h"
#include "dist/mpi_info.h"
#include "kernels/cuda/devices.h"

namespace sy {

// A machine, as a rank of it sees it. CPUs are what the operating system counts: hardware threads.
struct HostFacts {
  std::string name, processor;
  int sockets = 1, threads_per_core = 1;
  std::vector<int> cpus;     // which the process that started the rank may use: the job's share of the machine
  bool kernels_run = true;   // it has the vector instructions that the CPU kernels were compiled for
  Index memory = 0;          // bytes
  Index available = 0;       // of these
  Index shared_memory = 0;   // bytes free in /dev/shm, by which ranks of one machine exchange messages
  Index locked_memory = -1;  // bytes that a process may pin; -1: any number
  bool infiniband = false;   // it has InfiniBand or RoCE, which pins memory
  std::string driver;        // of NVIDIA: "580.65.06"; empty: none is loaded
  std::string driver_cuda;   // the newest CUDA that it knows; empty too where this build has no CUDA
  std::vector<cuda::Device> gpus;
};

struct RankFacts {
  int rank = 0;
  HostFacts host;
  std::vector<int> cpus;  // which it may use
  int threads = 1;        // with which it computes
  std::string gpu;        // the id of the one that it takes; empty: none
  std::string missing;    // why none
  bool broken = false;    // as cuda::Choice
};

// Every rank's, on every rank. Collective.
std::vector<RankFacts> collect_facts(Comm& world);

// Each machine once, with the GPUs that any of its ranks sees, those tried before others.
std::vector<HostFacts> hosts_of(const std::vector<RankFacts>& ranks);

struct Problem {
  std::string what, remedy;
  friend bool operator==(const Problem&, const Problem&) = default;
};
// What is misconfigured; pure. A GPU that is not there is no problem, nor is a build without CUDA.
std::vector<Problem> find_problems(const std::vector<RankFacts>& ranks, const MpiInfo& mpi);

// "0-3, 8"
std::string ranges(const std::vector<int>& ascending);
double gibibytes(Index bytes);

}  // namespace sy
