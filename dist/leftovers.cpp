#include "dist/leftovers.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "kernels/check.h"
#include "kernels/environment.h"

namespace sy {
namespace {
namespace fs = std::filesystem;

constexpr const char* record_name = "switchyard-job";
constexpr const char* segment_prefix = "/dev/shm/vader_segment.";

std::string first_line(const fs::path& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

// Identifies the boot and the PID namespace. A PID is meaningful only within the same ones.
std::string process_space() {
  std::error_code error;
  return first_line("/proc/sys/kernel/random/boot_id") + " " + fs::read_symlink("/proc/self/ns/pid", error).string();
}

// Returns the start time of a process in clock ticks since boot; empty if there is no such process.
std::string start_time(const std::string& process) {
  // "PID (NAME) STATE ...", with any characters in NAME.
  const std::string stat = first_line("/proc/" + process + "/stat");
  const std::size_t end = stat.rfind(')');
  if (end == stat.npos) return "";
  std::istringstream fields(stat.substr(end + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // field 22 of the line
  return field;
}

// Returns the segments that a process maps: name and inode.
std::map<std::string, ino_t> segments_of(const fs::path& process) {
  std::map<std::string, ino_t> result;
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string range, access, offset, device, name;
    ino_t inode = 0;
    if (fields >> range >> access >> offset >> device >> inode >> name && name.starts_with(segment_prefix))
      result[name] = inode;
  }
  return result;
}

// Returns whether `path` is a file or folder of this user, and no link. inode: 0 means any.
bool is_own(const fs::path& path, mode_t kind, ino_t inode = 0) {
  struct stat s {};
  return lstat(path.c_str(), &s) == 0 && (s.st_mode & S_IFMT) == kind && s.st_uid == geteuid() &&
         (inode == 0 || s.st_ino == inode);
}

// Returns the entries of a folder. Leaves out entries that cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> result;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) result.push_back(*it);
  return result;
}

struct Record {
  bool dead = false;
  std::map<std::string, ino_t> segments;
};

Record read_record(const fs::path& path) {
  Record record;
  if (!is_own(path, S_IFREG)) return record;
  std::ifstream lines(path);
  std::string space, launcher, start, name;
  if (!std::getline(lines, space) || space != process_space() || !(lines >> launcher >> start)) return record;
  ino_t inode = 0;
  while (lines >> inode >> name)
    if (name.starts_with(segment_prefix) && name.find('/', 9) == name.npos) record.segments[name] = inode;
  record.dead = lines.eof() && name == "end" && start_time(launcher) != start;
  return record;
}

}  // namespace

fs::path job_folder() {
  const char* const folder = environment("OMPI_MCA_orte_jobfam_session_dir");
  return folder ? folder : "";
}

void record_job(const fs::path& job) {
  if (job.empty() || !is_own(job, S_IFDIR)) return;
  const fs::path file = job / record_name;
  std::string text = fmt::format("{}\n{} {}\n", process_space(), getppid(), start_time(std::to_string(getppid())));
  for (const auto& [name, inode] : segments_of("/proc/self")) text += fmt::format("{} {}\n", inode, name);
  text += "0 end\n";
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return;
  // Readers ignore a record without "end".
  static_cast<void>(!write(fd, text.data(), text.size()));
  close(fd);
}

int collect_leftovers(const fs::path& jobs) {
  std::map<fs::path, Record> dead;
  if (!is_own(jobs, S_IFDIR)) return 0;
  for (const fs::path& job : entries_of(jobs))
    if (job.filename().string().starts_with("pid.") && is_own(job, S_IFDIR))
      if (Record record = read_record(job / record_name); record.dead) dead[job] = std::move(record);
  if (dead.empty()) return 0;
  std::set<std::string> used;
  for (const fs::path& process : entries_of("/proc"))
    for (const auto& [name, inode] : segments_of(process)) used.insert(name);
  int count = 0;
  for (const auto& [job, record] : dead) {
    bool in_use = false;
    for (const auto& [name, inode] : record.segments) in_use |= used.contains(name);
    if (in_use) continue;
    for (const auto& [name, inode] : record.segments)
      if (is_own(name, S_IFREG, inode)) unlink(name.c_str());
    std::error_code error;
    fs::remove_all(job, error);
    ++count;
  }
  return count;
}

}  // namespace sy
