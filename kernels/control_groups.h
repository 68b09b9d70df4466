// CPU and memory limits that Linux control groups (cgroups) set for this process.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sy {

// Returns the cgroup folders of this process for a version 1 controller, and those of version 2.
// In each hierarchy the innermost is first. Reads ROOT/proc/self/cgroup.
// The folders are below ROOT/sys/fs/cgroup, and need not exist.
std::vector<std::filesystem::path> control_groups(const std::string& controller, const std::filesystem::path& root);

// Returns the smallest CPU quota of the cgroups, in CPUs, such as 1.5; 0 means unlimited.
double cpu_time(const std::filesystem::path& root);
// Rounds a quota up to whole CPUs, each of which one thread can use. Pure function.
int cpu_quota(double cpu_time);

// Root folder of control_groups and cpu_time: "/", or $SWITCHYARD_CGROUP_ROOT in tests.
std::filesystem::path control_group_root();

}  // namespace sy
