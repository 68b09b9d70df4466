// CPU and memory limits that Linux control groups (cgroups) set for this process.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/types.h"

namespace sy {

// Returns the cgroup folders of this process for a version 1 controller, and those of version 2.
// In each hierarchy the innermost is first. Reads ROOT/proc/self/cgroup.
// The folders are below ROOT/sys/fs/cgroup, and need not exist.
std::vector<std::filesystem::path> control_groups(const std::string& controller, const std::filesystem::path& root);

// Returns the smallest CPU quota of the cgroups, in CPUs, such as 1.5; 0 means unlimited.
double cpu_time(const std::filesystem::path& root);
// Returns the quota rounded up to whole CPUs, from 1 to 1e6, each of which one thread can use.
// Returns 0 for 0, which means unlimited. Pure function.
int cpu_quota(double cpu_time);

// Returns the number in a file of a cgroup, such as memory.max (bytes). Returns -1 if there is no
// file or no number, as in "max". Also returns -1 for 2^60 or more, which version 1 of cgroups
// writes if there is no limit.
Index limit_in(const std::filesystem::path& file);
// Returns the lower of two limits; -1 means unlimited.
Index lower_limit(Index a, Index b);

// A memory limit of a cgroup, in bytes.
//
// - free: bytes of the limit that are unused, or used by the inactive page cache
// - group: folder of the cgroup
struct MemoryLimit {
  Index bytes = -1, free = -1;
  std::filesystem::path group = {};
};
// Returns the memory limits of this process's cgroups, the innermost cgroup of a hierarchy first.
std::vector<MemoryLimit> memory_limits(const std::filesystem::path& root);
// Returns the bytes of memory of this host, free or not.
Index physical_memory();

// Root folder of control_groups, cpu_time and memory_limits: "/", or $SWITCHYARD_CGROUP_ROOT in
// tests.
std::filesystem::path control_group_root();

}  // namespace sy
