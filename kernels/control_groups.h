// Limits that the control groups of Linux set on this process: a batch job's, or a container's.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sy {

// Folders of the control groups by which `controller` limits this process, the innermost first. Read from
// `root`/proc/self/cgroup; the folders are below `root`/sys/fs/cgroup, and need not exist.
std::vector<std::filesystem::path> control_groups(const std::string& controller, const std::filesystem::path& root);

// Number of CPUs whose time the control groups grant this process, rounded up; 0 means unlimited.
int cpu_quota(const std::filesystem::path& root);

// Root folder of control_groups and cpu_quota: "/", or $SWITCHYARD_CGROUP_ROOT in tests.
std::filesystem::path control_group_root();

}  // namespace sy
