#include "dist/runtime.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <new>
#include <sstream>
#include <system_error>
#include <thread>
#include <tuple>

#include "dist/comm_mpi.h"
#include "dist/device_comm.h"
#include "dist/fingerprints.h"
#include "dist/leftovers.h"
#include "dist/mpi_info.h"
#include "dist/shared_memory_transport.h"
#include "dist/watchdog.h"
#include "kernels/cpu/processor.h"
#include "kernels/philox.h"

namespace sy {
namespace {

// Returns the integer value of an environment variable; -1 if it is not set.
int int_from_env(const char* name) {
  const char* const value = std::getenv(name);
  return value ? std::atoi(value) : -1;
}

// Returns whether the environment has PMI_* or PMIX_* variables of a process manager.
// PMIX_MCA_* are settings, and do not count.
bool has_pmi() {
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view entry = *variable;
    if (entry.starts_with("PMI_") || (entry.starts_with("PMIX_") && !entry.starts_with("PMIX_MCA_"))) return true;
  }
  return false;
}

// Returns the number of tasks of the Slurm step that started this process. It is at most 1 if there
// is no such step, or if mpirun started this process.
int slurm_tasks() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") ? 0 : int_from_env("SLURM_STEP_NUM_TASKS");
}

// Returns whether a launcher (mpirun, MPICH's, srun) started this process as a rank of MPI.
// A Slurm step of one task needs no MPI. It may be a shell that runs several programs in sequence,
// and MPI would serve only the first of them.
bool launched() {
  const char* const nspace = std::getenv("PMIX_NAMESPACE");
  const bool by_slurm = !has_pmi() || (nspace && std::string_view(nspace).starts_with("slurm."));
  if (by_slurm && slurm_tasks() == 1 && !std::getenv("SLURM_HET_SIZE")) return false;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"})
    if (std::getenv(name)) return true;
  return false;
}

std::string error_lines(const std::string& what) {
  std::string shown;
  std::istringstream lines(what);
  for (std::string line; std::getline(lines, line, next_line);)
    shown += (shown.empty() ? "switchyard: " : "  ") + one_line(line) + "\n";
  return shown;
}

// A copy of the printed warnings and errors. Threads may print at the same time.
struct ConsoleLog {
  std::mutex mutex;
  std::FILE* file = nullptr;
  std::string early;  // printed before the file was known
  std::string error;  // the reason why text is missing in the file
};
ConsoleLog console_log;

// Prints in one write, since other ranks may print too. Ignores errors of standard error.
void print_error(const std::string& what) {
  const std::string text = error_lines(what);
  std::fputs(text.c_str(), stderr);
  log_console(text);
}

// Opens closed standard streams.
// Otherwise a file opened later would get such a descriptor, and with it the printed output.
// /dev/null is opened in the opposite direction: using the stream still fails.
void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0 && errno == EBADF)
      static_cast<void>(open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
}

volatile pid_t launcher_pid = 0;

// Signal handler: exits if the launcher has ended. Without it, a rank would run on until MPI
// notices, in a run folder that another job may own by then. The signal also comes if only the
// launcher's thread that started this rank has ended.
void exit_without_launcher(int) {
  if (getppid() != launcher_pid) _exit(1);
}

// Returns whether all threads of a process sleep; true if /proc does not show the process.
bool is_asleep(pid_t process) {
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process), error)) {
    std::ifstream stat(thread.path() / "stat");
    std::string line;  // "PID (NAME) STATE ...", with any characters in NAME
    std::getline(stat, line);
    if (const auto state = line.rfind(") "); state != line.npos && line[state + 2] != 'S') return false;
  }
  return true;
}

// Waits until the launcher has read this rank's output: until it sleeps, at most 10 seconds.
// Launchers end all ranks at the first exit code other than 0. This includes mpirun, even if it has
// unread output; but it reads all pending output before it sleeps again. A pseudo-terminal of
// mpirun delivers output with a delay, so that it must be asleep in 25 consecutive checks.
void wait_for_launcher_to_read() {
  using namespace std::chrono_literals;
  const auto until = std::chrono::steady_clock::now() + 10s;
  for (int asleep = 0; asleep < 25 && std::chrono::steady_clock::now() < until; std::this_thread::sleep_for(2ms))
    asleep = is_asleep(getppid()) ? asleep + 1 : 0;
}

void exit_with_launcher() {
  launcher_pid = getppid();
  std::signal(SIGURG, exit_without_launcher);  // unused otherwise, and ignored by default
  prctl(PR_SET_PDEATHSIG, SIGURG);
  exit_without_launcher(0);
}

// Ends a task of srun if MPI cannot connect the tasks. The first task prints the error and leaves
// first, since srun may end the others when one leaves.
[[noreturn]] void exit_without_pmi() {
  if (int_from_env("SLURM_PROCID") <= 0)
    print_error(
        fmt::format("srun started {} tasks, which cannot reach each other: start them with srun --mpi=pmix (srun "
                    "--mpi=list names what this cluster has), or a single one with srun -n1",
                    slurm_tasks()));
  else
    std::this_thread::sleep_for(std::chrono::seconds(1));
  std::exit(2);
}

// Returns the limits from the environment; the defaults if they are invalid.
// run() then reports the error on all ranks.
WatchdogLimits limits_or_default() {
  try {
    return watchdog_limits();
  } catch (const InputError&) {
    return {};
  }
}

// Returns exit code and message of the exception that is being handled.
std::pair<int, std::string> current_error() {
  try {
    throw;
  } catch (const Error& e) {
    return {e.exit_code(), e.what()};
  } catch (const std::filesystem::filesystem_error& e) {
    return {2, fmt::format("{}: {}: check the path and its permissions", e.path1().string(), e.code().message())};
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) return {1, e.what()};
    return {1,
            "a thread cannot be started (Resource temporarily unavailable): raise the limits on the address space "
            "(ulimit -v) and on processes (ulimit -u), or start fewer ranks"};
  } catch (const std::bad_alloc&) {
    return {1, "not enough memory: use smaller values, or more ranks"};
  } catch (const std::exception& e) {
    return {1, e.what()};
  }
}

}  // namespace

void log_console(std::string_view text) {
  constexpr std::size_t max_early_bytes = 1 << 16;
  const std::lock_guard lock(console_log.mutex);
  if (!console_log.file) {
    if (console_log.early.size() + text.size() <= max_early_bytes) console_log.early += text;
    return;
  }
  if (std::fwrite(text.data(), 1, text.size(), console_log.file) == text.size() && std::fflush(console_log.file) == 0)
    return;
  if (console_log.error.empty()) console_log.error = std::strerror(errno);
  std::clearerr(console_log.file);
}

void attach_console_log(std::FILE* file, std::string_view heading) {
  std::string early(heading);
  {
    const std::lock_guard lock(console_log.mutex);
    console_log.file = file;
    early += console_log.early;
  }
  log_console(early);
}

std::string console_log_error() {
  const std::lock_guard lock(console_log.mutex);
  return console_log.error;
}

std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  // The control characters U+0080 to U+009F have two bytes in UTF-8.
  for (std::size_t i = 0; i + 1 < text.size(); ++i)
    if (text[i] == '\xc2' && static_cast<unsigned char>(text[i + 1]) < 0xa0) text[i] = text[i + 1] = ' ';
  return text;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string broadcast_text(Comm& comm, std::string text, int root) {
  Index size = std::ssize(text);
  comm.broadcast(view_of(&size, {1}), root);
  text.resize(static_cast<std::size_t>(size));
  comm.broadcast(view_of(reinterpret_cast<std::uint8_t*>(text.data()), {size}), root);
  return text;
}

void warn(const std::string& text) {
  print_error("warning: " + text);
}

pid_t launcher() {
  return launched() ? getppid() : 0;
}

std::string output_error() {
  errno = 0;
  // A network file system may report a failed write only when a descriptor is closed.
  const bool broken = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  const int copy = broken ? -1 : dup(STDOUT_FILENO);
  if (!broken && (copy < 0 || close(copy) == 0)) return "";
  std::string why = errno != 0 ? std::strerror(errno) : "an earlier write failed";
  std::clearerr(stdout);
  return why;
}

Runtime::Runtime(int* argc, char*** argv) {
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);
  if (slurm_tasks() > 1 && !has_pmi()) exit_without_pmi();
  if (launched()) exit_with_launcher();
  start_watchdog();
  if (!launched()) {
    world_ = make_comm_self();
    return;
  }
  const ScopedBlock block("the start of MPI on all ranks");
  int provided = 0;
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
  owns_mpi_ = true;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const ScopedBlock block_on_window("the start of the other ranks of this machine, which share memory");
  auto transport = SharedMemoryTransport::open(MPI_COMM_WORLD, &shared_memory.missing);
  if (transport) shared_memory = {transport->size(), transport->bytes(), ""};
  if (const char* const rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK"); rank && std::string_view(rank) == "0") {
    collect_leftovers(job_folder().parent_path());
    record_job(job_folder());
  }
  world_ = make_comm_mpi(MPI_COMM_WORLD, false, std::move(transport));
  // Launchers may not pass the environment to all ranks.
  const char* const setting = std::getenv("SWITCHYARD_COMPARE");
  fingerprint_check = {world_->max(setting && std::string_view(setting) == "1") > 0, world_->rank()};
}

void Runtime::start_watchdog() {
  try {
    watchdog_ = std::make_unique<Watchdog>(limits_or_default());
  } catch (const std::exception&) {
    exit_process(current_error().second, false);
  }
}

Runtime::~Runtime() {
  constexpr const char* others = "the end of the other ranks";
  {
    const ScopedBlock block(others);  // freeing the window waits for the ranks that share it
    world_.reset();
  }
  if (!owns_mpi_) return;
  std::fflush(stdout);
  if (code_ != 0) wait_for_launcher_to_read();
  const ScopedBlock block(others);
  MPI_Barrier(MPI_COMM_WORLD);  // no rank leaves before launchers have read all output
  MPI_Finalize();
  watchdog_.reset();
}

int Runtime::run(const std::function<int()>& program) {
  return code_ = exit_code_of(program);
}

int Runtime::exit_code_of(const std::function<int()>& program) {
  try {
    WatchdogLimits limits;
    agree_on_errors(*world_, [&] {
      limits = watchdog_limits();
      check_window_setting();
    });
    watchdog_->rendezvous(*world_, limits);
    return abort_job_on_error(*world_, [&] {
      const int code = program();
      agree_on_errors(*world_, [] {
        if (const std::string why = output_error(); !why.empty())
          fail("cannot write standard output: {}: what was to be printed is not whole", why);
      });
      return code;
    });
  } catch (const CollectiveError& e) {
    if (world_->rank() == 0) print_error(e.what());
    return e.exit_code();
  } catch (const std::exception&) {
    const auto [code, what] = current_error();
    print_error(what);
    return code;
  }
}

namespace {

// Ends Open MPI's mpirun, or its daemon on another machine. No-op for other launchers.
// Two SIGTERM within five seconds end it at once. A second signal that arrives before the first one
// is handled is lost. Therefore SIGTERM repeats every 200 ms for five seconds; SIGKILL follows.
void terminate_mpirun() {
  const pid_t mpirun = getppid();
  std::string name;
  std::ifstream(fmt::format("/proc/{}/comm", mpirun)) >> name;
  if (name != "mpirun" && name != "orterun" && name != "orted") return;
  for (int i = 0; i < 25 && getppid() == mpirun; ++i) {
    kill(mpirun, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  if (getppid() == mpirun) kill(mpirun, SIGKILL);
}

}  // namespace

// The alarm ends the process if standard error is a full pipe without a reader,
// or if the launcher never sleeps.
void exit_process(const std::string& what, bool launcher_too) {
  std::signal(SIGALRM, SIG_DFL);
  alarm(20);
  const std::string shown = error_lines(what);
  static_cast<void>(!write(STDERR_FILENO, shown.data(), shown.size()));
  log_console(shown);
  if (launched()) wait_for_launcher_to_read();
  if (launched() && launcher_too) terminate_mpirun();
  _exit(1);
}

int abort_job_on_error(Comm& world, const std::function<int()>& work) {
  try {
    return work();
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::exception&) {
    if (world.size() == 1) throw;
    const auto [code, what] = current_error();
    print_error(fmt::format("rank {}: {}", world.rank(), what));
    std::fflush(stdout);
    wait_for_launcher_to_read();
    const ScopedBlock block("the launcher to end all ranks");
    MPI_Abort(MPI_COMM_WORLD, code);
    throw;
  }
}

namespace {

// Returns the number of ranks on this machine with an equal `key`: before this rank, and in total.
std::pair<int, int> count_equal_keys(Comm& world, const std::string& key) {
  const auto mine = static_cast<Index>(hash_name(host_name() + "/" + key));
  std::vector<Index> all(world.size());
  world.all_gather(view_of(&mine, {1}), view_of(all.data(), {world.size()}));
  const auto here = all.begin() + world.rank();
  return {static_cast<int>(std::count(all.begin(), here, mine)),
          static_cast<int>(std::count(all.begin(), all.end(), mine))};
}

}  // namespace

int local_rank(Comm& world) {
  return count_equal_keys(world, "").first;
}

int ranks_sharing(Comm& world, const std::string& device) {
  return count_equal_keys(world, device).second;
}

int agree_on_devices(Comm& world, const Backend& backend) {
  if (world.max(backend.on_host()) + world.max(!backend.on_host()) == 2)
    throw CollectiveError(
        2, "some ranks have a GPU and others have none: see `switchyard doctor`, or set the backend to cpu");
  if (backend.on_host()) return 1;
  const int sharing = ranks_sharing(world, backend.device_id());
  const DeviceCollectives collectives = device_collectives();
  if (world.max(sharing > 1 && !collectives.shares_devices) > 0)
    throw CollectiveError(
        2, fmt::format("several ranks share a GPU, which {} refuses: start as many ranks on a machine as it has GPUs "
                       "(see `switchyard doctor`), or set the backend to cpu",
                       collectives.name));
  return sharing;
}

void agree_on_isa(Comm& world) {
  Index mine = 0;
  agree_on_errors(world, [&] { mine = &cpu_isa() - cpu_isas().data(); });
  use_cpu_isa(cpu_isas()[static_cast<std::size_t>(-world.max(-mine))]);
}

void agree_on_errors(Comm& comm, const std::function<void()>& work) {
  int code = 0;
  std::string what;
  try {
    work();
  } catch (const std::exception&) {
    std::tie(code, what) = current_error();
  }
  const Index lowest = comm.size() - comm.max(code != 0 ? comm.size() - comm.rank() : 0);
  if (lowest == comm.size()) return;
  const int root = static_cast<int>(lowest);
  Index root_code = code;
  comm.broadcast(view_of(&root_code, {1}), root);
  throw CollectiveError(static_cast<int>(root_code), broadcast_text(comm, what, root));
}

}  // namespace sy
