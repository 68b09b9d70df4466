// Program of ends.sh: ranks that end in different ways. Arguments:
//   (empty)        the last rank fails and holds an object whose destructor blocks, as freeing GPU
//                  memory does while a collective uses it; abort_job_on_error must end all ranks
//   report         rank 0 prints, and all ranks return 1
//   slow           the same, and rank 0 leaves late: its output must arrive before the others leave
//   busy           starts itself with "report" as a launcher that reads the output late
//   slowly         starts itself with "unreachable" as an mpirun that handles signals late
//   unreachable    ends itself and its launcher, as if another machine were out of reach
//   differ CASE    the last rank makes another call (dist/fingerprints.h), or is stopped or killed
//   late SECONDS   rank 0 works for so long before it joins a barrier
//   leaves         the last rank leaves early
//   busy-rank      the local work of the last rank does not end
//   threadless     the address space has no memory for a thread
// ENDS_STOP names an MPI function at whose call the last rank is stopped. ENDS_MEMORY names one at
// whose call its address space becomes full.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "dist/phase.h"
#include "dist/runtime.h"

namespace {

std::string_view environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// Limits the address space to its current size and 1 MiB.
void fill_address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{1} << 20);
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
}

// Stops the last rank or fills its address space, if the environment names this MPI function.
void inject(std::string_view function) {
  if (const sy::LaunchedRank mine = sy::launched_rank(); mine.rank + 1 != mine.size) return;
  if (function == environment("ENDS_STOP")) raise(SIGSTOP);
  if (function == environment("ENDS_MEMORY")) fill_address_space();
}

}  // namespace

// These definitions replace the library's at link time.
extern "C" {
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  inject("MPI_Init_thread");
  return PMPI_Init_thread(argc, argv, required, provided);
}
int MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window) {
  inject("MPI_Win_allocate_shared");
  return PMPI_Win_allocate_shared(size, unit, info, comm, base, window);
}
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* subgroup) {
  inject("MPI_Comm_split_type");
  return PMPI_Comm_split_type(comm, type, key, info, subgroup);
}
int MPI_Win_free(MPI_Win* window) {
  inject("MPI_Win_free");
  return PMPI_Win_free(window);
}
int MPI_Finalize() {
  inject("MPI_Finalize");
  return PMPI_Finalize();
}
}

namespace {

struct Stuck {
  ~Stuck() { std::this_thread::sleep_for(std::chrono::hours(1)); }
};

struct Slow {
  ~Slow() { std::this_thread::sleep_for(wait); }
  std::chrono::seconds wait{0};
};
Slow slow;  // destroyed before standard output is flushed

void make_other_call(sy::Comm& world, std::string_view what) {
  using sy::Index, sy::view_of;
  const int n = world.size();
  const bool other = world.rank() == n - 1;
  // Communicator of all ranks except rank 0.
  const auto subgroup = world.split([](int rank) { return rank > 0; });
  world.barrier();
  const sy::ScopedPhase phase(world.rank_context(), other && what == "layer" ? "backward pass" : "forward pass", 2);
  std::vector<float> x(static_cast<std::size_t>(8 * n)), all(static_cast<std::size_t>(8 * n * n));
  if (what == "operation" && other) world.all_gather(view_of(x.data(), {4}), view_of(all.data(), {4 * n}));
  if (what == "size" && other) return world.all_reduce(view_of(x.data(), {5}));
  if (what == "barrier" && other) return world.barrier();
  if (what == "group" && world.rank() > 0) subgroup->all_reduce(view_of(x.data(), {other ? 3 : 2}));
  if (what == "elsewhere" && other) subgroup->barrier();
  if (what == "stopped" && other) raise(SIGSTOP);
  if (what == "killed" && other) raise(SIGKILL);
  if (what == "counts") {
    // Each rank sends a row to each rank, but the last rank expects two from rank 0.
    std::vector<Index> send(static_cast<std::size_t>(n), 1), receive = send;
    if (other) receive[0] = 2;
    return world.all_to_all_v(view_of(x.data(), {n, 2}), send, view_of(all.data(), {other ? n + 1 : n, 2}), receive);
  }
  world.all_reduce(view_of(x.data(), {4}));
}

// A launcher that looks for exits before it reads output, after two busy seconds.
// Returns 0 if the rank was still running then.
int launch_busily(char* program) {
  int output[2];
  if (pipe(output) != 0) return 2;
  const pid_t rank = fork();
  if (rank == 0) {
    dup2(output[1], STDOUT_FILENO);
    close(output[0]), close(output[1]);
    setenv("PMI_SIZE", "1", 1);
    execl(program, program, "report", nullptr);
    _exit(127);
  }
  close(output[1]);
  pollfd printed{output[0], POLLIN, 0};
  if (poll(&printed, 1, 60000) != 1) return 3;
  const auto started = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - started < std::chrono::seconds(2)) continue;
  int status = 0;
  if (waitpid(rank, &status, WNOHANG) != 0) return 4;
  char text[256];
  while (read(output[0], text, sizeof text) > 0) continue;
  waitpid(rank, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 0 : 5;
}

// An mpirun that a rank ends, and that handles SIGTERM a second late. It must get a second SIGTERM.
// Returns 0 if it does.
int launch_slowly(char* program) {
  prctl(PR_SET_NAME, "mpirun");
  sigset_t term, pending;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, nullptr);
  const pid_t rank = fork();
  if (rank == 0) {
    sigprocmask(SIG_UNBLOCK, &term, nullptr);
    setenv("PMI_SIZE", "1", 1);
    execl(program, program, "unreachable", nullptr);
    _exit(127);
  }
  do {
    if (waitpid(rank, nullptr, WNOHANG) != 0) return 3;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    sigpending(&pending);
  } while (sigismember(&pending, SIGTERM) == 0);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const timespec moment{}, patience{10, 0};
  if (sigtimedwait(&term, nullptr, &moment) != SIGTERM) return 4;
  // The rank ends with its launcher.
  return sigtimedwait(&term, nullptr, &patience) == SIGTERM ? 0 : 5;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "busy") return launch_busily(argv[0]);
  if (argc == 2 && std::string_view(argv[1]) == "slowly") return launch_slowly(argv[0]);
  if (argc == 2 && std::string_view(argv[1]) == "threadless") fill_address_space();
  sy::Runtime runtime(std::make_shared<sy::RankContext>(), &argc, &argv);
  sy::Comm& world = runtime.world();
  return runtime.run([&] {
    if (argc > 2 && std::string_view(argv[1]) == "late") {
      if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(std::atoi(argv[2])));
      world.barrier();
      return 0;
    }
    if (argc > 1 && std::string_view(argv[1]) == "leaves") {
      if (world.rank() == world.size() - 1) throw sy::CollectiveError(2, "it leaves alone");
      world.barrier();
    }
    if (argc > 1 && std::string_view(argv[1]) == "busy-rank") {
      const sy::ScopedPhase phase(world.rank_context(), "forward pass", 2);
      if (world.rank() == world.size() - 1) std::this_thread::sleep_for(std::chrono::hours(1));
      world.barrier();
    }
    if (argc > 2) {
      make_other_call(world, argv[2]);
      return 0;
    }
    if (argc > 1 && std::string_view(argv[1]) == "unreachable") sy::exit_process("a machine is out of reach", true);
    if (argc > 1) {
      if (world.rank() == 0) {
        fmt::print("all that it found");
        if (std::string_view(argv[1]) == "slow") slow.wait = std::chrono::seconds(10);
      }
      return 1;
    }
    const Stuck stuck;
    return sy::abort_job_on_error(world, [&] {
      if (world.rank() == world.size() - 1) sy::bad_input("it fails alone");
      world.barrier();
      return 0;
    });
  });
}
