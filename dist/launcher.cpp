#include "dist/launcher.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "dist/console.h"
#include "kernels/check.h"
#include "kernels/environment.h"

namespace sy {
namespace {

// Returns the number of tasks of the Slurm step that started this process. It is at most 1 if there
// is no such step, or if mpirun started this process.
int slurm_tasks() {
  return environment("OMPI_COMM_WORLD_SIZE") ? 0 : environment_int("SLURM_STEP_NUM_TASKS");
}

volatile pid_t parent_at_start = 0;

// Signal handler: exits if the launcher has ended. Without it, a rank would run on until MPI
// notices, in a run folder that another job may own by then. The signal also comes if only the
// launcher's thread that started this rank has ended.
void exit_without_launcher(int) {
  if (getppid() != parent_at_start) _exit(1);
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
  for (const VariableName name : std::initializer_list<VariableName>{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK",
                                                                     "PMIX_RANK", "SLURM_STEP_NUM_TASKS"})
    if (environment(name)) return true;
  return false;
}

pid_t launcher_pid() {
  return launched() ? getppid() : 0;
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
  parent_at_start = getppid();
  std::signal(SIGURG, exit_without_launcher);  // unused otherwise, and ignored by default
  prctl(PR_SET_PDEATHSIG, SIGURG);
  exit_without_launcher(0);
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

// Two SIGTERM within five seconds end mpirun at once. A second signal that arrives before the first
// one is handled is lost. Therefore SIGTERM repeats every 200 ms for five seconds; SIGKILL follows.
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

}  // namespace sy
