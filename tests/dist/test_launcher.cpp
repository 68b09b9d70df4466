// The table of launchers: the variables from which a process knows its number before MPI starts.
#include "dist/launcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "dist/mpi_info.h"
#include "kernels/environment.h"

namespace sy {
namespace {

using Variables = std::map<std::string, std::string>;

// Replaces the variables of launchers in the environment. Restores them at the end.
class LauncherEnvironment {
 public:
  explicit LauncherEnvironment(const Variables& variables) {
    for (const auto& [name, meaning] : environment_variables) {
      const std::string variable(name);
      const bool of_launcher = variable.starts_with("OMPI_") || variable.starts_with("PM") ||
                               variable.starts_with("MPI_") || variable.starts_with("PALS_") ||
                               variable.starts_with("FLUX_") || variable.starts_with("SLURM_");
      if (!of_launcher) continue;
      if (const char* const value = std::getenv(variable.c_str())) saved_[variable] = value;
      unset_.push_back(variable);
      unsetenv(variable.c_str());
    }
    for (const auto& [name, value] : variables) {
      unset_.push_back(name);
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~LauncherEnvironment() {
    for (const std::string& name : unset_) unsetenv(name.c_str());
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
  }
  LauncherEnvironment(const LauncherEnvironment&) = delete;
  LauncherEnvironment& operator=(const LauncherEnvironment&) = delete;

 private:
  Variables saved_;
  std::vector<std::string> unset_;
};

struct Launch {
  const char* launcher;
  Variables variables;
  bool launched;
  int rank, size, local_rank;
};

const Launch launches[] = {
    {"nothing", {}, false, -1, -1, -1},
    {"Open MPI",
     {{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
     true,
     5,
     8,
     1},
    {"Hydra", {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}}, true, 5, 8, 1},
    {"a process manager without a size", {{"PMI_RANK", "5"}}, true, 5, -1, -1},
    {"PALS", {{"PALS_RANKID", "5"}, {"PALS_LOCAL_RANKID", "1"}}, true, 5, -1, 1},
    {"PALS for Cray MPICH",
     {{"PALS_RANKID", "5"}, {"PALS_LOCAL_RANKID", "1"}, {"PMI_RANK", "5"}, {"PMI_SIZE", "8"}},
     true,
     5,
     8,
     1},
    {"Flux", {{"FLUX_TASK_RANK", "5"}, {"FLUX_JOB_SIZE", "8"}, {"FLUX_TASK_LOCAL_ID", "1"}}, true, 5, 8, 1},
    {"PMIx", {{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "prterun-1"}}, true, 5, -1, -1},
    {"srun --mpi=pmix",
     {{"PMIX_RANK", "5"},
      {"PMIX_NAMESPACE", "slurm.pmix.7.0"},
      {"SLURM_PROCID", "5"},
      {"SLURM_STEP_NUM_TASKS", "8"},
      {"SLURM_LOCALID", "1"}},
     true,
     5,
     8,
     1},
    {"srun", {{"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_LOCALID", "1"}}, true, 5, 8, 1},
    {"a batch script of Slurm",
     {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "7"}},
     false,
     -1,
     -1,
     -1},
    {"a Slurm step of one task", {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}, false, 0, 1, -1},
    {"Open MPI's mpirun in a task of Flux",
     {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}},
     true,
     3,
     4,
     -1},
    {"Hydra in a Slurm step",
     {{"PMI_RANK", "3"},
      {"PMI_SIZE", "4"},
      {"MPI_LOCALRANKID", "2"},
      {"SLURM_PROCID", "0"},
      {"SLURM_STEP_NUM_TASKS", "1"},
      {"SLURM_LOCALID", "0"}},
     true,
     3,
     4,
     2},
};

TEST(Launcher, IsRecognizedByItsVariables) {
  for (const Launch& launch : launches) {
    SCOPED_TRACE(launch.launcher);
    const LauncherEnvironment environment(launch.variables);
    EXPECT_EQ(launched(), launch.launched);
    EXPECT_EQ(launcher_pid() != 0, launch.launched);
    const LaunchedRank mine = launched_rank();
    EXPECT_EQ(mine.rank, launch.rank);
    EXPECT_EQ(mine.size, launch.size);
    EXPECT_EQ(mine.local_rank, launch.local_rank);
    EXPECT_EQ(is_unconnected(1), launch.launched && launch.size > 1);
    EXPECT_FALSE(is_unconnected(8));
    EXPECT_EQ(mpi_info().started, std::max(0, launch.size));
  }
}

}  // namespace
}  // namespace sy
