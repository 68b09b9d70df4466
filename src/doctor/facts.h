// Facts that `switchyard doctor` collects on each rank, and the problems that follow from them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "dist/mpi_info.h"
#include "kernels/cuda/devices.h"
#include "src/io/hdf5/hdf5_library.h"

namespace sy {

// Limits of a process set by the operating system. -1 means unlimited.
struct Limits {
  Index open_files = -1;
  Index processes = -1;      // processes and threads of this user or of the control group
  Index locked_memory = -1;  // bytes that it may pin
  Index stack = -1;          // bytes, of its first thread
  Index core = -1;           // bytes of a core file
};

// A machine, as one of its ranks sees it. CPUs are hardware threads, as the operating system
// counts.
struct HostFacts {
  std::string name, processor;
  int sockets = 1, threads_per_core = 1;
  // CPUs that the parent process of the rank may use: the job's share of the machine.
  std::vector<int> cpus;
  // CPUs' worth of time that a control group grants the rank; 0 means unlimited.
  double cpu_time = 0;
  // Load average of the last minute, before doctor measures; negative if unknown.
  double load = -1;
  // Widest instruction set that the processor has and the CPU kernels are compiled for.
  std::string isa;
  Index memory = 0;  // bytes
  // Bytes that a control group (a batch job, a container) allows its processes; -1 means unlimited.
  Index memory_limit = -1;
  Index available = 0;  // bytes of available memory, within the limit
  // Bytes free in /dev/shm, through which ranks of one machine exchange messages.
  Index shared_memory = 0;
  int window_ranks = 1;    // number of ranks that share this rank's window
  Index window_bytes = 0;  // size of the window
  std::string no_window;   // reason if several ranks have no window; otherwise empty
  Limits limits;
  bool infiniband = false;  // has InfiniBand or RoCE, which pins memory
  std::string driver;       // NVIDIA's, such as "580.65.06"; empty if none is loaded
  // Newest CUDA version of the driver; also empty if this build has no CUDA.
  std::string driver_cuda;
  std::vector<cuda::Gpu> gpus;
  Hdf5Library hdf5;
  std::string unicode;  // unicode_libraries()
};

// The folder for runs, as a rank sees it.
struct FolderFacts {
  std::string path, type;  // type of the file system, such as "ext4" or "nfs"
  std::string error;       // reason why it cannot be written; empty if it can
  Index free_bytes = -1;   // for this user, ignoring quotas; -1 if unknown
  Index free_files = -1;   // files that can still be created; -1 if unknown or unlimited
  // Seconds until this rank saw the file of rank 0. -1 if it did not, or if nothing was written.
  double seen_after = -1;
  // Measured by the first rank of each machine that sees that file; -1 if not measured.
  double write_seconds = -1;    // until a small file is on the disk under its final name
  double write_bandwidth = -1;  // bytes/s of writing a large file
  bool locks = true;            // flock works on files
};

struct RankFacts {
  int rank = 0;
  HostFacts host;
  std::vector<int> cpus;  // CPUs that it may use
  int threads = 1;        // number of compute threads
  std::string gpu;        // id of its GPU; empty if it has none
  std::string missing;    // reason why it has none
  bool broken = false;    // see cuda::Choice
  // Setting because of which MPI handles GPU memory, such as "MPICH_GPU_SUPPORT_ENABLED=1"; empty
  // if there is none.
  std::string gpu_aware_mpi;
  // Setting because of which NCCL uses TCP between hosts, such as "NCCL_NET=Socket"; empty if there
  // is none.
  std::string nccl_over_tcp;
  double speed = 0;  // FLOP/s of GEMMs while all ranks compute; 0 if not measured
  // Seconds by which its clock is ahead of rank 0's, and the largest error of this value.
  double clock_ahead = 0, clock_error = 0;
  FolderFacts folder;
};

// Returns the facts of all ranks on every rank. Collective.
// `folder`: the folder for runs; some files are written there and removed. Takes about a second,
// and a few more if a rank does not see these files.
std::vector<RankFacts> collect_facts(Comm& world, const std::filesystem::path& folder);

// Returns each machine once, with the GPUs that any of its ranks sees. A tried GPU replaces its
// untried entry.
std::vector<HostFacts> hosts_of(const std::vector<RankFacts>& ranks);

struct Problem {
  std::string what, remedy;
  friend bool operator==(const Problem&, const Problem&) = default;
};
// Returns what is misconfigured. Pure. A missing GPU is not a problem, nor is a build without CUDA.
std::vector<Problem> find_problems(const std::vector<RankFacts>& ranks, const MpiInfo& mpi);

double gibibytes(Index bytes);

}  // namespace sy
