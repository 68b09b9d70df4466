// Facts about the host of this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sy {

// Returns the processor model from /proc/cpuinfo. If the file has none, returns the architecture,
// such as "aarch64".
std::string processor_name();

// Memory of this host, and the part of it that control groups (cgroups) allow.
struct HostMemory {
  // A cgroup of this process that has a limit. The processes of a group share its limit.
  struct Group {
    std::string id;      // unique on this machine
    std::int64_t limit;  // in bytes
  };
  std::int64_t bytes = 0;  // of the host, free or not
  std::vector<Group> groups = {};
};
HostMemory host_memory();

// Returns the id of this process's batch job: the first that is set of SLURM_JOB_ID, PBS_JOBID,
// LSB_JOBID and JOB_ID. Empty if none is set, as in a job of Flux or PJM.
std::string job_id();

}  // namespace sy
