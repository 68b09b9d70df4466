#include "dist/launcher.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "dist/console.h"
#include "kernels/check.h"
#include "kernels/environment.h"

namespace sy {
namespace {

// Variables of a launcher. An empty name means that it sets no such variable.
struct LauncherVariables {
  VariableName rank, size, local_rank;
};

// The launchers in the order of their precedence, because mpirun may run in a job of the others.
// They are Open MPI, Hydra of MPICH and others with PMI, PALS, Flux, others with PMIx, and Slurm.
// The rank of Slurm alone is no launch, because it is set in batch scripts, too.
constexpr LauncherVariables launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"PALS_RANKID", "", "PALS_LOCAL_RANKID"},
    {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"},
    {"PMIX_RANK", "", ""},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
};

// Returns whether this launcher started the process.
bool started_by(const LauncherVariables& launcher) {
  const bool is_slurm = &launcher == std::end(launchers) - 1;
  return environment(launcher.size) || (!is_slurm && environment(launcher.rank));
}

// Returns a number from the first launcher that started the process and sets it; otherwise -1.
int launched_number(VariableName LauncherVariables::*number) {
  for (const LauncherVariables& launcher : launchers)
    if (started_by(launcher) && environment(launcher.*number)) return environment_int(launcher.*number);
  return -1;
}

// Returns the number of tasks of the Slurm step that started this process. It is at most 1 if there
// is no such step, or if mpirun started this process.
int slurm_tasks() {
  return environment("OMPI_COMM_WORLD_SIZE") ? 0 : environment_int("SLURM_STEP_NUM_TASKS");
}

constexpr std::string_view hydra_proxy = "hydra_pmi_proxy";

volatile pid_t parent_at_start = 0;

// Signal handler: exits if the launcher has ended. Without it, a rank would run on until MPI
// notices, in a run folder that another job may own by then. The signal also comes if only the
// launcher's thread that started this rank has ended.
void exit_without_launcher(int) {
  if (getppid() != parent_at_start) _exit(1);
}

std::string process_name(pid_t process) {
  std::string name;
  std::ifstream(fmt::format("/proc/{}/comm", process)) >> name;
  return name;
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

}  // namespace

// A Slurm step of one task needs no MPI. It may be a shell that runs several programs in sequence,
// and MPI would serve only the first of them.
bool launched() {
  const char* const nspace = environment("PMIX_NAMESPACE");
  const bool by_slurm =
      !environment_has_process_manager() || (nspace && std::string_view(nspace).starts_with("slurm."));
  if (by_slurm && slurm_tasks() == 1 && !environment("SLURM_HET_SIZE")) return false;
  return std::any_of(std::begin(launchers), std::end(launchers), started_by);
}

LaunchedRank launched_rank() {
  return {launched_number(&LauncherVariables::rank), launched_number(&LauncherVariables::size),
          launched_number(&LauncherVariables::local_rank)};
}

// MPICH's mpiexec starts a proxy on each machine, which starts the ranks. It may be the proxy's
// parent.
pid_t launcher_pid() {
  if (!launched()) return 0;
  const pid_t parent = getppid();
  return process_name(parent) == hydra_proxy ? parent_of(parent) : parent;
}

pid_t parent_of(pid_t process) {
  std::ifstream stat(fmt::format("/proc/{}/stat", process));
  std::string line;  // "PID (NAME) STATE PARENT ..."; a name may have any characters
  std::getline(stat, line);
  const auto name_end = line.rfind(") ");
  return name_end == line.npos ? 0 : std::atoi(line.c_str() + std::min(line.size(), name_end + 4));
}

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
  parent_at_start = getppid();                 // the one whose end the kernel reports
  std::signal(SIGURG, exit_without_launcher);  // unused otherwise, and ignored by default
  prctl(PR_SET_PDEATHSIG, SIGURG);
  exit_without_launcher(0);
}

bool is_unconnected(int size) {
  return size == 1 && launched() && launched_rank().size > 1;
}

// The first task prints the error and leaves first: srun may end the others when one leaves.
void exit_without_process_manager() {
  if (slurm_tasks() <= 1 || environment_has_process_manager()) return;
  if (environment_int("SLURM_PROCID") <= 0)
    print_error(
        fmt::format("srun started {} tasks, which cannot reach each other: start them with srun --mpi=pmix (srun "
                    "--mpi=list names what this cluster has), or a single one with srun -n1",
                    slurm_tasks()));
  else
    std::this_thread::sleep_for(std::chrono::seconds(1));
  std::exit(2);
}

// Two SIGTERM within five seconds end Open MPI's mpirun at once, and two SIGINT that of MPICH. A
// second signal that arrives before the first one is handled is lost. Therefore the signal repeats
// every 200 ms for five seconds; SIGKILL follows.
void terminate_mpirun() {
  const pid_t parent = getppid(), mpirun = launcher_pid();
  const std::string name = process_name(mpirun);
  const bool hydra = parent != mpirun && (name.starts_with("mpiexec") || name.starts_with("mpirun"));
  if (!hydra && name != "mpirun" && name != "orterun" && name != "orted") return;
  const auto goes_on = [&] { return getppid() == parent && (!hydra || parent_of(parent) == mpirun); };
  for (int i = 0; i < 25 && goes_on(); ++i) {
    kill(mpirun, hydra ? SIGINT : SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  if (goes_on()) kill(mpirun, SIGKILL);
}

}  // namespace sy
