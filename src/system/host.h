// Facts about the host of this process.
#pragma once

#include <cstdint>
#include <string>

namespace sy {

// Returns the model of the processor, as of /proc/cpuinfo; the architecture, such as "aarch64", if
// that does not tell it.
std::string processor_name();

// Memory of this host, and the part of it that control groups (cgroups) allow this process.
//
// - bytes: of the host, free or not
// - limit: the lowest limit of the cgroups of this process, in bytes; -1 means unlimited
// - group: id of the cgroup with that limit, unique on this machine; empty if there is no limit
struct HostMemory {
  std::int64_t bytes = 0, limit = -1;
  std::string group = {};
};
HostMemory host_memory();

// Returns the number of this process's job in its batch system; empty if there is none.
std::string job_id();

}  // namespace sy
