#include "src/system/host.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <initializer_list>

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

std::int64_t host_memory() {
  return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
}

std::string job_id() {
  for (const VariableName variable :
       std::initializer_list<VariableName>{"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"})
    if (const char* job = environment(variable)) return job;
  return {};
}

}  // namespace sy
