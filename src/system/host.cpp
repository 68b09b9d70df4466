#include "src/system/host.h"

#include <sys/stat.h>
#include <sys/utsname.h>

#include <fstream>
#include <initializer_list>

#include "kernels/control_groups.h"
#include "kernels/environment.h"

namespace sy {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t value = line.find(": ");
    if (line.starts_with("model name") && value != line.npos) return line.substr(value + 2);
  }
  utsname system;
  return uname(&system) == 0 ? system.machine : "unknown";
}

HostMemory host_memory() {
  HostMemory memory{.bytes = physical_memory()};
  for (const MemoryLimit& limit : memory_limits(control_group_root())) {
    // Containers may give different groups the same name. The folders then differ.
    struct stat folder;
    const bool found = stat(limit.group.c_str(), &folder) == 0;
    memory.groups.push_back(
        {found ? fmt::format("{}:{}", folder.st_dev, folder.st_ino) : limit.group.string(), limit.bytes});
  }
  return memory;
}

std::string job_id() {
  for (const VariableName variable :
       std::initializer_list<VariableName>{"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"})
    if (const char* job = environment(variable)) return job;
  return {};
}

}  // namespace sy
