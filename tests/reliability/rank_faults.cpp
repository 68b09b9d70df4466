#include "tests/reliability/rank_faults.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "dist/comm.h"
#include "dist/launcher.h"
#include "src/build_info.h"
#include "tests/faults/faults.h"
#include "tests/reliability/file_history.h"

namespace sy::campaign {
namespace {

struct Injection {
  bool active = false;
  int window = -1;
  long call = 0;
  int action = 0;
  std::atomic<long> passages[num_windows] = {};
};
Injection injection;

// Number of this rank; 0 without a launcher.
int rank_here() {
  return std::max(0, launched_rank().rank);
}

void act(Action action) {
  if (action == Action::kill) ::raise(SIGKILL);
  if (action == Action::stop) ::raise(SIGSTOP);
  const int code = action == Action::exit_3 ? 3 : 0;
  if (::getpid() == ::gettid()) std::exit(code);
  ::_exit(code);  // destructors would run beside the main thread
}

void pass(Window window) {
  if (!injection.active) return;
  const auto index = static_cast<int>(window);
  if (++injection.passages[index] == injection.call && index == injection.window)
    act(static_cast<Action>(injection.action));
}

// Passes a window before and after a call.
class Passage {
 public:
  explicit Passage(Window window) : window_(window) { pass(window_); }
  ~Passage() { pass(window_); }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

 private:
  Window window_;
};

}  // namespace

namespace {

// Arms the fault of CAMPAIGN_KILL in its rank. With call 0, each rank counts its calls.
void arm_kill(const std::string& text) {
  static std::string path;
  int rank = -1, kind = 0;
  Fault fault;
  std::istringstream(text) >> rank >> fault.at >> kind >> path;
  if (fault.at != 0 && rank != rank_here()) return;
  fault.path = path.c_str();
  fault.error = kind == 0 ? kill_before : kill_halfway;
  fault.removals = true;
  fault_arm(&fault);
}

// Records the changes of files as CAMPAIGN_RECORD says.
void arm_record(const std::string& text) {
  static std::string path;
  std::string file;
  std::istringstream(text) >> file >> path;
  Fault none;
  none.path = path.c_str();
  fault_arm(&none);
  start_record(file);
}

}  // namespace

void arm_rank_faults() {
  if (const char* const record = std::getenv("CAMPAIGN_RECORD")) return arm_record(record);
  if (const char* const kill = std::getenv("CAMPAIGN_KILL")) return arm_kill(kill);
  const char* const chosen = std::getenv("CAMPAIGN_WINDOW");
  if (!chosen && !std::getenv("CAMPAIGN_COUNTS")) return;
  int rank = -1;
  if (chosen) std::istringstream(chosen) >> rank >> injection.window >> injection.call >> injection.action;
  if (chosen && rank != rank_here()) return;
  injection.active = true;
  Fault none;
  none.path = "/checkpoints/";
  fault_arm(&none);
  fault_record([](const FileChange&) { pass(Window::save); });
  pass(Window::init);
}

void write_window_counts() {
  const char* const path = std::getenv("CAMPAIGN_COUNTS");
  const auto passed = [](const auto& count) { return count > 0; };
  if (!path || !(fault_calls() > 0 || std::ranges::any_of(injection.passages, passed))) return;
  std::ofstream out(path + ("." + std::to_string(rank_here())));
  for (const auto& passages : injection.passages) out << passages << " ";
  out << fault_calls();
}

}  // namespace sy::campaign

using sy::campaign::Passage;
using sy::campaign::Window;

// These definitions replace the library's at link time.
#define INJECTED(window, name, parameters, arguments) \
  int MPI_##name parameters {                         \
    const Passage passage(Window::window);            \
    return PMPI_##name arguments;                     \
  }
extern "C" {
INJECTED(init, Init_thread, (int* argc, char*** argv, int required, int* level), (argc, argv, required, level))
INJECTED(shared, Comm_split_type, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* group),
         (comm, type, key, info, group))
INJECTED(shared, Win_allocate_shared,
         (MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window),
         (size, unit, info, comm, base, window))
INJECTED(message, Comm_split, (MPI_Comm comm, int color, int key, MPI_Comm* group), (comm, color, key, group))
INJECTED(message, Barrier, (MPI_Comm comm), (comm))
INJECTED(message, Bcast, (void* x, int count, MPI_Datatype type, int root, MPI_Comm comm), (x, count, type, root, comm))
INJECTED(message, Allreduce, (const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
         (in, out, count, type, op, comm))
INJECTED(message, Allgather,
         (const void* in, int sent, MPI_Datatype type, void* out, int count, MPI_Datatype out_type, MPI_Comm comm),
         (in, sent, type, out, count, out_type, comm))
INJECTED(message, Isend,
         (const void* x, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request),
         (x, count, type, to, tag, comm, request))
INJECTED(message, Irecv,
         (void* x, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request),
         (x, count, type, from, tag, comm, request))
INJECTED(end, Win_free, (MPI_Win * window), (window))
INJECTED(end, Finalize, (), ())
}
#undef INJECTED

// Functions that the linker replaces (ld --wrap). A member function is called as one that has the
// object as its first argument.
#define WRAPPED(result, name, parameters, arguments) \
  extern "C" result __real_##name parameters;        \
  extern "C" result __wrap_##name parameters {       \
    const Passage passage(Window::collective);       \
    return __real_##name arguments;                  \
  }
// NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker gives
WRAPPED(void, _ZN2sy4Comm10all_gatherENS_9BasicViewIKSt4byteEENS1_IS2_EE,
        (sy::Comm * comm, sy::ConstView in, sy::View out), (comm, in, out))
WRAPPED(void, _ZN2sy4Comm10all_reduceENS_9BasicViewISt4byteEENS_6ReduceE, (sy::Comm * comm, sy::View x, sy::Reduce op),
        (comm, x, op))
WRAPPED(void, _ZN2sy4Comm14reduce_scatterENS_9BasicViewIKSt4byteEENS1_IS2_EES5_,
        (sy::Comm * comm, sy::ConstView in, sy::View out, sy::View scratch), (comm, in, out, scratch))
WRAPPED(void, _ZN2sy4Comm7barrierEv, (sy::Comm * comm), (comm))
WRAPPED(sy::Index, _ZN2sy4Comm3maxEl, (sy::Comm * comm, sy::Index x), (comm, x))
WRAPPED(double, _ZN2sy4Comm3sumEd, (sy::Comm * comm, double x), (comm, x))
WRAPPED(sy::Work, _ZN2sy4Comm12start_reduceESt4spanIKNS_12RootedBufferELm18446744073709551615EENS_12ComputePointE,
        (sy::Comm * comm, std::span<const sy::RootedBuffer> buffers, sy::ComputePoint after), (comm, buffers, after))
WRAPPED(sy::Work, _ZN2sy4Comm15start_broadcastESt4spanIKNS_12RootedBufferELm18446744073709551615EENS_12ComputePointE,
        (sy::Comm * comm, std::span<const sy::RootedBuffer> buffers, sy::ComputePoint after), (comm, buffers, after))
#undef WRAPPED

extern "C" const sy::BuildInfo& __real__ZN2sy10build_infoEv();
extern "C" const sy::BuildInfo& __wrap__ZN2sy10build_infoEv() {
  static const sy::BuildInfo info = [] {
    sy::BuildInfo build = __real__ZN2sy10build_infoEv();
    const char* const value = std::getenv("CAMPAIGN_BUILD");
    const std::string changed = value ? value : "";
    if (changed == "version") build.version = "0.0.1";
    if (changed == "commit") build.commit = std::string(40, '0');
    if (changed == "options") build.flags += " -O0";
    return build;
  }();
  return info;
}
// NOLINTEND(bugprone-reserved-identifier)
