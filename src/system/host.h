// Facts about the host of this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sy {

// Returns the model of the processor, as of /proc/cpuinfo; the architecture, such as "aarch64", if
// that does not tell it.
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

// Returns the number of this process's job in its batch system; empty if there is none.
std::string job_id();

}  // namespace sy
