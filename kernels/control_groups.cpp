#include "kernels/control_groups.h"

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

fs::path control_group_root() {
  const char* const root = environment("SWITCHYARD_CGROUP_ROOT");
  return root ? root : "/";
}

}  // namespace sy
