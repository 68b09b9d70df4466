// What `switchyard doctor` goes by: facts that each rank finds out, and the problems that follow from them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "dist/mpi_info.h"
#include "kernels/cuda/devices.h"
#include "src/io/hdf5.h"

namespace sy {

// What the operating system lets a process have. -1: any number.
struct Limits {
  Index open_files = -1;
  Index processes = -1;      // and threads, of this user or of the control group
  Index locked_memory = -1;  // bytes that it may pin
  Index stack = -1;          // bytes, of its first thread
  Index core = -1;           // bytes, of a core file
};

// A machine, as a rank of it sees it. CPUs are what the operating system counts: hardware threads.
struct HostFacts {
  std::string name, processor;
  int sockets = 1, threads_per_core = 1;
  std::vector<int> cpus;    // which the process that started the rank may use: the job's share of the machine
  double cpu_time = 0;      // number of CPUs whose time a control group grants the rank; 0 means unlimited
  double load = -1;         // load average of the last minute, before doctor measures; negative if unknown
  std::string isa;          // the widest instruction set that the CPU kernels are compiled for and that it has
  Index memory = 0;         // bytes
  Index memory_limit = -1;  // what a control group (a batch job, a container) lets its processes have of these; -1: all
  Index available = 0;      // of these, or of the limit
  Index shared_memory = 0;  // bytes free in /dev/shm, by which ranks of one machine exchange messages
  int window_ranks = 1;     // of it that share a window (dist/window.h), the first of which tells this
  Index window_bytes = 0;   // of that
  std::string no_window;    // why there is none; empty: there is, or nobody to share it with
  Limits limits;
  bool infiniband = false;  // it has InfiniBand or RoCE, which pins memory
  std::string driver;       // of NVIDIA: "580.65.06"; empty: none is loaded
  std::string driver_cuda;  // the newest CUDA that it knows; empty too where this build has no CUDA
  std::vector<cuda::Device> gpus;
  Hdf5Library hdf5;
  std::string unicode;  // unicode_libraries()
};

// The folder that runs are to be written in, as a rank sees it.
struct FolderFacts {
  std::string path, type;  // type: of the file system: "ext4", "nfs"
  std::string error;       // why it cannot be written; empty where it can
  Index free_bytes = -1;   // for this user, quotas aside; -1: not known
  Index free_files = -1;   // that can still be made; -1: not known, or any number
  double seen_after = -1;  // seconds until what rank 0 had written was seen; -1: it was not, or nothing was written
  // Measured by the first rank of each machine that sees it; -1: not measured.
  double write_seconds = -1;    // until a small file, complete under its name, is on the disk
  double write_bandwidth = -1;  // bytes/s until a large one is
  bool locks = true;            // files can be locked (flock)
};

struct RankFacts {
  int rank = 0;
  HostFacts host;
  std::vector<int> cpus;  // which it may use
  int threads = 1;        // with which it computes
  std::string gpu;        // the id of the one that it takes; empty: none
  std::string missing;    // why none
  bool broken = false;    // as cuda::Choice
  double speed = 0;       // FLOP/s of products while all ranks compute; 0: not measured
  // Seconds by which its clock is ahead of rank 0's, and by how many that may be wrong.
  double clock_ahead = 0, clock_error = 0;
  FolderFacts folder;
};

// Every rank's, on every rank. `folder`: where runs are to be written; some files are written there and removed. Takes a second or
// so, and a few more where a rank does not see these files. Collective.
std::vector<RankFacts> collect_facts(Comm& world, const std::filesystem::path& folder);

// Each machine once, with the GPUs that any of its ranks sees, those tried before others.
std::vector<HostFacts> hosts_of(const std::vector<RankFacts>& ranks);

struct Problem {
  std::string what, remedy;
  friend bool operator==(const Problem&, const Problem&) = default;
};
// What is misconfigured; pure. A GPU that is not there is no problem, nor is a build without CUDA.
std::vector<Problem> find_problems(const std::vector<RankFacts>& ranks, const MpiInfo& mpi);

double gibibytes(Index bytes);

}  // namespace sy
