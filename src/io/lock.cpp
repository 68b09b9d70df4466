#include "src/io/lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <ctime>
#include <mutex>
#include <sstream>

#include "dist/runtime.h"
#include "kernels/check.h"
#include "src/system/files.h"
#include "src/system/host.h"

namespace sy {
namespace {

// "node7, process 1234, job 56"
std::string process_text() {
  std::string text = fmt::format("{}, process {}", host_name(), getpid());
  if (const std::string job = job_id(); !job.empty()) text += ", job " + job;
  return text;
}

// Returns whether `holder` names a process of another host.
bool is_on_other_host(const std::string& holder) {
  const std::size_t end = holder.find(", process ");
  return end != holder.npos && holder.substr(0, end) != host_name();
}

// Returns whether the process named by `holder` has ended, as far as this host can tell.
bool has_ended(const std::string& holder) {
  std::istringstream in(holder);
  std::string host, label;
  pid_t process = 0;
  if (!(std::getline(in, host, ',') && in >> label >> process) || process <= 0) return holder.empty();
  if (host != host_name()) return false;
  return process == getpid() || (kill(process, 0) != 0 && errno == ESRCH);
}

// Returns the first bytes of a file. A lock file is shorter. Sets errno to 0, or to the error if it
// returns nothing because of one.
std::string all_content(int file) {
  char text[1024];
  errno = 0;
  const ssize_t size = pread(file, text, sizeof text, 0);
  return {text, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

// Returns the first line of a file. Sets errno as all_content().
std::string content(int file) {
  const std::string all = all_content(file);
  return all.substr(0, all.find('\n'));
}

std::string error_text(int error) {
  if (error == ELOOP) return "its switchyard.lock is a link";
  if (error == EMLINK) return "its switchyard.lock is a second name of another file";
  if (error == EINVAL) return "its switchyard.lock is no regular file";
  return std::strerror(error);
}

// Returns whether `path` still names an open file. Sets errno to 0 if it does not; another errno
// value is an error of the look-up.
bool is_same_file(int file, const std::filesystem::path& path) {
  struct stat mine, there;
  if (fstat(file, &mine) != 0) return false;
  if (lstat(path.c_str(), &there) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) errno = 0;
    return false;
  }
  errno = 0;
  return mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

// Writes all of `text` at the beginning of an open file. Returns 0, or an errno value.
int write_at_start(int file, std::string_view text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = pwrite(file, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    done += static_cast<std::size_t>(n);
  }
  return 0;
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds timeout, const std::string& user,
                       const std::string& remedy, std::chrono::milliseconds stale_after, std::string note)
    : path_(folder / lock_name), stale_after_(stale_after), note_(std::move(note)) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (const int error = try_lock()) {
    if (error != EWOULDBLOCK)
      throw_write_error(error, fmt::format("{} = {} cannot be written ({}): check the path and its permissions, or {}",
                                           user, folder.string(), error_text(error), remedy));
    if (std::chrono::steady_clock::now() >= end && !watching_)
      bad_input("{} = {} is in use by {}: wait for it, or {}{}", user, folder.string(), holder_, remedy, advice_);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  // Signals must go to the thread that creates this one.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  heartbeat_ = std::jthread([this](const std::stop_token& stop) { touch_until_stopped(stop); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void FolderLock::touch_until_stopped(const std::stop_token& stop) const {
  std::mutex mutex;
  std::condition_variable_any condition;
  std::unique_lock lock(mutex);
  while (!condition.wait_for(lock, stop, stale_after_ / 6, [] { return false; }) && !stop.stop_requested())
    futimens(file_, nullptr);
}

bool FolderLock::is_stale(int file, const std::string& written) {
  struct stat status {};
  fstat(file, &status);
  const std::string now =
      fmt::format("{} {} {}.{}", written, status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  if (now != seen_) {
    watching_ = seen_.empty();  // a second change shows a living holder
    seen_ = now;
    seen_at_ = std::chrono::steady_clock::now();
  }
  return std::chrono::steady_clock::now() - seen_at_ >= stale_after_;
}

int FolderLock::try_lock() {
  const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (file < 0) return errno;
  // A hard link to another file is not written to.
  struct stat status {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink > 1) {
    close(file);
    return status.st_nlink > 1 ? EMLINK : EINVAL;
  }
  const std::string written = content(file);
  const bool locked = flock(file, LOCK_EX | LOCK_NB) == 0, no_locks = !locked && errno != EWOULDBLOCK && errno != EINTR;
  if (locked ? !is_same_file(file, path_)  // deleted by its last holder between open and flock
                   || (is_on_other_host(written) && !is_stale(file, written))
             : !no_locks || !has_ended(written)) {
    close(file);
    holder_ = written.empty() ? "another process" : written;
    if (no_locks || is_on_other_host(written))
      advice_ = fmt::format("; if that process is gone, delete {}", path_.string());
    return EWOULDBLOCK;
  }
  text_ = process_text();
  std::string text = fmt::format("{}\nsince {:%F %T} UTC\n", text_, fmt::gmtime(std::time(nullptr)));
  if (!note_.empty()) text += note_ + "\n";
  // The file keeps its note if the process is killed in between.
  int why = write_at_start(file, text);
  if (why == 0 && ftruncate(file, static_cast<off_t>(text.size())) != 0) why = errno;
  if (why != 0) {
    close(file);
    return why;
  }
  file_ = file;
  return 0;
}

std::string lock_holder(const std::filesystem::path& folder) {
  const int file = open((folder / lock_name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return "";
  struct stat status {};
  std::string written;
  bool held = false;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
    written = content(file);
    const bool free = flock(file, LOCK_SH | LOCK_NB) == 0, no_locks = !free && errno != EWOULDBLOCK && errno != EINTR;
    const bool young = std::abs(std::difftime(std::time(nullptr), status.st_mtime)) <
                       std::chrono::duration<double>(FolderLock::default_stale_after).count();
    held = is_on_other_host(written) ? young : no_locks ? !has_ended(written) : !free;
  }
  close(file);
  return !held ? "" : written.empty() ? "another process" : written;
}

std::string lock_note(const std::filesystem::path& folder) {
  const int file = open((folder / lock_name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return "";
  struct stat status {};
  std::string text = fstat(file, &status) == 0 && S_ISREG(status.st_mode) ? all_content(file) : "";
  close(file);
  // Below the note may be the end of an older text, if a process was killed while it wrote.
  for (int line = 0; line < 2; ++line) text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  return text.substr(0, text.find('\n'));
}

bool FolderLock::held() const {
  // Opened again, so that a network file system asks its server.
  const int now = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  int error = now >= 0 || errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : errno;
  bool mine = false;
  if (now >= 0) {
    mine = is_same_file(file_, path_) && content(now) == text_;
    error = mine ? 0 : errno;
    close(now);
  }
  if (error != 0) fail("cannot look up {}: {}", path_.string(), std::strerror(error));
  return mine;
}

FolderLock::~FolderLock() {
  heartbeat_.request_stop();
  heartbeat_.join();
  try {
    if (held()) unlink(path_.c_str());
  } catch (const std::exception&) {  // the file stays, as after a kill
  }
  close(file_);
}

}  // namespace sy
