#include <sys/resource.h>

#include <filesystem>
#include <string_view>

#include "kernels/control_groups.h"
#include "kernels/environment.h"
#include "src/doctor/probes.h"

namespace sy {

std::string gpu_aware_mpi_setting(std::string_view cuda_aware) {
  if (environment_int("MPICH_GPU_SUPPORT_ENABLED") == 1) return "MPICH_GPU_SUPPORT_ENABLED=1";
  const char* const value = environment("OMPI_MCA_opal_cuda_support");
  const std::string_view opal = value ? value : "";
  if (opal == "1" || opal == "true") return fmt::format("OMPI_MCA_opal_cuda_support={}", opal);
  return cuda_aware == "yes" && opal.empty() ? "the default of an MPI with CUDA" : "";
}

std::string nccl_over_tcp_setting() {
  if (const char* const network = environment("NCCL_NET"); network && std::string_view(network) == "Socket")
    return "NCCL_NET=Socket";
  return environment_int("NCCL_IB_DISABLE") == 1 && !environment("NCCL_NET") ? "NCCL_IB_DISABLE=1" : "";
}
namespace {

namespace fs = std::filesystem;

Index limit_of(int resource) {
  rlimit limit{};
  getrlimit(resource, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<Index>(limit.rlim_cur);
}

}  // namespace

Limits process_limits() {
  Limits limits{.open_files = limit_of(RLIMIT_NOFILE),
                .processes = limit_of(RLIMIT_NPROC),
                .locked_memory = limit_of(RLIMIT_MEMLOCK),
                .stack = limit_of(RLIMIT_STACK),
                .core = limit_of(RLIMIT_CORE)};
  for (const fs::path& group : control_groups("pids", "/"))
    limits.processes = lower_limit(limits.processes, limit_in(group / "pids.max"));
  return limits;
}

}  // namespace sy
