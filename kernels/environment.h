// The process environment. Other files neither read nor set variables: a test checks it.
// docs/reference/environment.md describes the variables for users.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sy {

// An environment variable of the program.
struct EnvironmentVariable {
  std::string_view name, meaning;
};

// All variables that the program reads or sets.
inline constexpr auto environment_variables = std::to_array<EnvironmentVariable>({
    // of the program
    {"SWITCHYARD_ISA", "instruction set of the CPU kernels"},
    {"SWITCHYARD_TIMEOUT", "seconds without progress of any rank after which a job ends"},
    {"SWITCHYARD_LOCAL_TIMEOUT", "seconds that a rank's own work may take"},
    {"SWITCHYARD_WINDOW", "number of consecutive ranks that share memory"},
    {"SWITCHYARD_COMPARE", "1: ranks compare each collective before they start it"},
    {"SWITCHYARD_GRAPHS", "0: no CUDA graphs"},
    {"SWITCHYARD_CUDNN", "0: no attention by cuDNN"},
    {"SWITCHYARD_CUTLASS", "0: no products of experts by CUTLASS"},
    {"SWITCHYARD_LARGE_PRODUCT", "multiplications from which GEMMs of experts run one after the other"},
    {"SWITCHYARD_SMALL_PRODUCT", "multiplications below which GEMMs of experts share one call"},
    {"SWITCHYARD_CGROUP_ROOT", "folder with proc and sys for the tests of CPU quotas"},
    {"SWITCHYARD_POWERCAP", "folder of the RAPL zones"},
    {"SWITCHYARD_CONSOLE_PROCESS", "process of launch/mpirun.sh, whose streams are the console"},
    {"SWITCHYARD_THREAD_SETTINGS", "variables of OpenMP that the first start of the program set"},
    {"HOME", "path of ~/ in settings"},
    {"NO_COLOR", "no colours if it is set"},
    {"TERM", "kind of the terminal; dumb: no colours"},
    // of batch systems and launchers
    {"SLURM_JOB_ID", "number of the job, for the lock of a run and for provenance"},
    {"PBS_JOBID", "number of the job, for the lock of a run and for provenance"},
    {"LSB_JOBID", "number of the job, for the lock of a run and for provenance"},
    {"JOB_ID", "number of the job, for the lock of a run and for provenance"},
    {"SLURM_STEP_NUM_TASKS", "number of tasks of the Slurm step"},
    {"SLURM_PROCID", "number of the task"},
    {"SLURM_LOCALID", "number of the task among those of its machine"},
    {"SLURM_HET_SIZE", "number of components of a heterogeneous job"},
    {"OMPI_COMM_WORLD_SIZE", "number of ranks of mpirun"},
    {"OMPI_COMM_WORLD_RANK", "rank of this process"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "rank of this process among those of its machine"},
    {"OMPI_MCA_orte_jobfam_session_dir", "folder of the job, for the removal of shared memory"},
    {"PMI_SIZE", "number of ranks of a process manager"},
    {"PMI_RANK", "rank of this process"},
    {"MPI_LOCALRANKID", "rank of this process among those of its machine"},
    {"PALS_RANKID", "rank of this process"},
    {"PALS_LOCAL_RANKID", "rank of this process among those of its machine"},
    {"FLUX_JOB_SIZE", "number of tasks of the job"},
    {"FLUX_TASK_RANK", "number of the task"},
    {"FLUX_TASK_LOCAL_ID", "number of the task among those of its machine"},
    {"PMIX_RANK", "rank of this process"},
    {"PMIX_NAMESPACE", "job of this process; names its process manager"},
    // of libraries
    {"OMP_NUM_THREADS", "threads of a rank"},
    {"OMP_WAIT_POLICY", "whether waiting threads spin"},
    {"GOMP_SPINCOUNT", "how often a waiting thread looks for work before it sleeps"},
    {"CUDA_MODULE_LOADING", "EAGER: all kernels are loaded at the start"},
    {"NCCL_MAX_CTAS", "largest number of CTAs of a communicator"},
    {"NCCL_MAX_NCHANNELS", "largest number of channels of a communicator"},
    {"NCCL_MAX_P2P_NCHANNELS", "channels between two ranks"},
    {"NCCL_NVLS_ENABLE", "0: no sums in NVSwitch"},
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "1: collectives start in the order of the calls"},
    {"NCCL_NET", "network of NCCL; Socket is TCP"},
    {"NCCL_IB_DISABLE", "1: NCCL does not use InfiniBand and RoCE"},
    {"MPICH_GPU_SUPPORT_ENABLED", "1: Cray MPICH handles GPU memory"},
    {"OMPI_MCA_opal_cuda_support", "whether Open MPI handles GPU memory"},
    {"NCCL_HOSTID", "if it is set, ranks may share a GPU"},
    {"HDF5_USE_FILE_LOCKING", "whether HDF5 locks files"},
});

// Name of a variable of the table, or an empty name, for a variable that is never set. Any other
// name does not compile.
class VariableName {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is meant
  consteval VariableName(const char* name) : name_(name) {
    for (const EnvironmentVariable& variable : environment_variables)
      if (variable.name == name) return;
    if (std::string_view(name).empty()) return;
    throw "add the variable to environment_variables and to docs/reference/environment.md";
  }
  constexpr const char* c_str() const { return name_; }

 private:
  const char* name_;
};

// Returns the value of a variable; nullptr if it is not set.
const char* environment(VariableName name);
// Returns the integer value of a variable; -1 if it is not set, 0 if it is not a number.
int environment_int(VariableName name);
// Returns whether the environment has a variable of a process manager: PMI_* or PMIX_*.
// PMIX_MCA_* are settings, and do not count.
bool environment_has_process_manager();

// Returns names and values of all variables, sorted by name. Includes variables that the program
// does not know. For reports alone.
std::vector<std::pair<std::string, std::string>> environment_entries();

// Set and unset a variable of this process. Only main and the functions that it calls before any
// thread exists may do so.
void set_environment(VariableName name, const char* value);
void unset_environment(VariableName name);
// Sets defaults of CUDA and NCCL, unless the user has set these variables.
// Call it in main, before MPI starts: MPI may make the first CUDA call of the process, at which the
// driver reads its variables.
void set_library_defaults();

}  // namespace sy
