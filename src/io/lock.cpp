#include "src/io/lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "kernels/check.h"
#include "src/io/files.h"

namespace sy {
namespace {

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// "node7, process 1234, job 56"
std::string myself() {
  std::string text = fmt::format("{}, process {}", host_name(), getpid());
  for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"})
    if (const char* job = std::getenv(variable)) return fmt::format("{}, job {}", text, job);
  return text;
}

// Whether the process that `holder` names has ended, as far as this host can tell.
bool has_ended(const std::string& holder) {
  std::istringstream in(holder);
  std::string host, word;
  pid_t process = 0;
  if (!(std::getline(in, host, ',') && in >> word >> process) || process <= 0) return holder.empty();
  if (host != host_name()) return false;
  return process == getpid() || (kill(process, 0) != 0 && errno == ESRCH);
}

std::string content(int file) {
  char text[512];
  const ssize_t size = pread(file, text, sizeof text, 0);
  const std::string_view all(text, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return std::string(all.substr(0, all.find('\n')));
}

bool is_at(int file, const std::filesystem::path& path) {
  struct stat mine, there;
  return fstat(file, &mine) == 0 && lstat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
         mine.st_dev == there.st_dev;
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds patience, const std::string& user,
                       const std::string& elsewhere)
    : path_(folder / lock_name) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (const int obstacle = take()) {
    if (obstacle != EWOULDBLOCK)
      cannot_write(obstacle, fmt::format("{} = {} cannot be written ({}): check the path and its permissions, or {}",
                                         user, folder.string(), std::strerror(obstacle), elsewhere));
    if (std::chrono::steady_clock::now() >= end)
      bad_input("{} = {} is in use by {}: wait for it, or {}{}", user, folder.string(), holder_, elsewhere, advice_);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

int FolderLock::take() {
  const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0) return errno;
  const std::string written = content(file);
  const bool locked = flock(file, LOCK_EX | LOCK_NB) == 0, no_locks = !locked && errno != EWOULDBLOCK && errno != EINTR;
  if (locked ? !is_at(file, path_)  // deleted by the one before, between open and flock
             : !no_locks || !has_ended(written)) {
    close(file);
    holder_ = written.empty() ? "another process" : written;
    if (no_locks) advice_ = fmt::format("; if that process is gone, delete {}", path_.string());
    return EWOULDBLOCK;
  }
  const std::string text = myself() + '\n';
  const ssize_t written_bytes = ftruncate(file, 0) != 0 ? -1 : pwrite(file, text.data(), text.size(), 0);
  if (written_bytes != static_cast<ssize_t>(text.size())) {
    const int why = written_bytes < 0 ? errno : ENOSPC;
    close(file);
    return why;
  }
  file_ = file;
  return 0;
}

bool FolderLock::held() const {
  return is_at(file_, path_);
}

FolderLock::~FolderLock() {
  if (held()) unlink(path_.c_str());
  close(file_);
}

}  // namespace sy
