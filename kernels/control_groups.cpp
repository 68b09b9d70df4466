#include "kernels/control_groups.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "kernels/environment.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

// A CPU quota: microseconds of CPU time (`quota`) for each period. quota < 0 means unlimited.
struct Quota {
  double quota = -1, period = 0;
};

// Version 2: one file with "max 100000" or "150000 100000".
Quota quota_v2(const fs::path& group) {
  Quota q;
  std::ifstream in(group / "cpu.max");
  if (in >> q.quota >> q.period) return q;
  return {};
}

// Version 1: two files; a quota of -1 means unlimited.
Quota quota_v1(const fs::path& group) {
  Quota q;
  std::ifstream quota(group / "cpu.cfs_quota_us"), period(group / "cpu.cfs_period_us");
  if (quota >> q.quota && period >> q.period) return q;
  return {};
}

// Bytes of a cgroup's cached files, which are freed when memory is needed.
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

// In a container the groups outside of it have names in /proc and no folders. The container's own
// group is then the outermost.
std::vector<fs::path> control_groups(const std::string& controller, const fs::path& root) {
  std::vector<fs::path> folders;
  std::ifstream in(root / "proc/self/cgroup");
  // Version 1: "4:memory:/job/step"; version 2: "0::/job/step".
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string number, controllers, path;
    std::getline(fields, number, ':'), std::getline(fields, controllers, ':'), std::getline(fields, path);
    if (!controllers.empty() && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    fs::path mount = root / "sys/fs/cgroup";
    if (!controllers.empty()) mount /= controller;
    for (fs::path group = fs::path(path).relative_path(); !group.empty(); group = group.parent_path())
      folders.push_back(mount / group);
    folders.push_back(mount);
  }
  return folders;
}

double cpu_time(const fs::path& root) {
  double least = 0;
  for (const fs::path& group : control_groups("cpu", root))
    for (const Quota& q : {quota_v2(group), quota_v1(group)}) {
      if (q.quota <= 0 || q.period <= 0) continue;
      least = least == 0 ? q.quota / q.period : std::min(least, q.quota / q.period);
    }
  return least;
}

int cpu_quota(double cpu_time) {
  return cpu_time > 0 ? static_cast<int>(std::clamp(std::ceil(cpu_time), 1.0, 1e6)) : 0;
}

Index limit_in(const fs::path& file) {
  std::ifstream in(file);
  Index number = -1;
  return in >> number && number < Index{1} << 60 ? number : -1;
}

Index lower_limit(Index a, Index b) {
  return a < 0 ? b : b < 0 ? a : std::min(a, b);
}

std::vector<MemoryLimit> memory_limits(const fs::path& root) {
  std::vector<MemoryLimit> limits;
  for (const fs::path& group : control_groups("memory", root))
    for (const auto& [maximum, usage] :
         {std::pair{"memory.max", "memory.current"}, {"memory.limit_in_bytes", "memory.usage_in_bytes"}}) {
      const Index bytes = limit_in(group / maximum);
      if (bytes < 0) continue;
      const Index used = std::max<Index>(0, limit_in(group / usage) - cached(group));
      limits.push_back({bytes, std::max<Index>(0, bytes - used), group});
    }
  return limits;
}

Index physical_memory() {
  return Index{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
}

fs::path control_group_root() {
  const char* const root = environment("SWITCHYARD_CGROUP_ROOT");
  return root ? root : "/";
}

}  // namespace sy
