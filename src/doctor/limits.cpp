#include <sys/resource.h>

#include <algorithm>
#include <fstream>

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

// Returns the lower of two limits; -1 means unlimited.
Index lower_limit(Index a, Index b) {
  return a < 0 ? b : b < 0 ? a : std::min(a, b);
}

// Returns the number in a file; -1 without a file or a number, as in "max". A number beyond any
// machine also means unlimited: version 1 of control groups writes such numbers.
Index number_in(const fs::path& file) {
  std::ifstream in(file);
  Index number = -1;
  return in >> number && number < Index{1} << 60 ? number : -1;
}

// Bytes of a control group's cached files, which are freed when memory is needed.
Index cached(const fs::path& group) {
  std::ifstream in(group / "memory.stat");
  std::string key;
  Index bytes = 0, of_group = 0, of_all = -1;
  while (in >> key >> bytes) {
    if (key == "inactive_file") of_group = bytes;
    if (key == "total_inactive_file") of_all = bytes;  // version 1: with its subgroups
  }
  return of_all >= 0 ? of_all : of_group;
}

}  // namespace

Limits process_limits() {
  Limits limits{.open_files = limit_of(RLIMIT_NOFILE),
                .processes = limit_of(RLIMIT_NPROC),
                .locked_memory = limit_of(RLIMIT_MEMLOCK),
                .stack = limit_of(RLIMIT_STACK),
                .core = limit_of(RLIMIT_CORE)};
  for (const fs::path& group : control_groups("pids", "/"))
    limits.processes = lower_limit(limits.processes, number_in(group / "pids.max"));
  return limits;
}

MemoryLimit memory_limit(const fs::path& root) {
  MemoryLimit limit;
  for (const fs::path& group : control_groups("memory", root))
    for (const auto& [maximum, usage] :
         {std::pair{"memory.max", "memory.current"}, {"memory.limit_in_bytes", "memory.usage_in_bytes"}}) {
      const Index bytes = number_in(group / maximum);
      if (bytes < 0) continue;
      const Index used = std::max<Index>(0, number_in(group / usage) - cached(group));
      limit.bytes = lower_limit(limit.bytes, bytes);
      limit.free = lower_limit(limit.free, std::max<Index>(0, bytes - used));
    }
  return limit;
}

}  // namespace sy
