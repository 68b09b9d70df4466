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
// Rounds a quota up to whole CPUs, each of which one thread can use. Pure function.
int cpu_quota(double cpu_time);

// Returns the number in a file of a cgroup, such as memory.max or memory.current; -1 without a file
// or a number, as in "max". A number beyond any machine also means unlimited: version 1 of cgroups
// writes such numbers.
Index limit_in(const std::filesystem::path& file);
// Returns the lower of two limits; -1 means unlimited.
Index lower_limit(Index a, Index b);

// A memory limit of a cgroup, in bytes.
//
// - free: bytes of the limit that are unused or only cache files
// - group: folder of the cgroup
struct MemoryLimit {
  Index bytes = -1, free = -1;
  std::filesystem::path group = {};
};
// Returns the limits of the cgroups of this process that have one, of innermost groups first.
std::vector<MemoryLimit> memory_limits(const std::filesystem::path& root);
// Returns the bytes of memory of this host, free or not.
Index physical_memory();

// Root folder of control_groups, cpu_time and memory_limits: "/", or $SWITCHYARD_CGROUP_ROOT in
// tests.
std::filesystem::path control_group_root();

}  // namespace sy
