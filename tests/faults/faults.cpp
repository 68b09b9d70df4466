#include "tests/faults/faults.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/faults/next.h"

namespace {

struct Armed {
  bool active = false;
  char path[PATH_MAX] = "";
  Fault fault;
};
Armed armed;
std::atomic<long> calls = 0;
void (*recorder)(const FileChange&) = nullptr;

enum class Verdict { pass, fail, half, lose, kill };

[[noreturn]] void end_process() {
  for (;;) ::kill(::getpid(), SIGKILL);
}

bool matches(const char* path) {
  return armed.active && path && std::strstr(path, armed.path);
}

// Counts a call on `path` and decides on it. errno is set if it fails.
Verdict judge(const char* path) {
  if (!matches(path)) return Verdict::pass;
  const long n = ++calls;
  if (armed.fault.at == 0 || n < armed.fault.at || (n > armed.fault.at && !armed.fault.lasts)) return Verdict::pass;
  if (armed.fault.error == kill_before) end_process();
  if (armed.fault.error == kill_halfway) return Verdict::kill;
  if (armed.fault.error == half_a_write) return Verdict::half;
  if (armed.fault.error == lost_write) return Verdict::lose;
  errno = armed.fault.error;
  return Verdict::fail;
}

// The path of an open file; empty if it has none, or if no fault is armed.
struct OpenPath {
  char text[PATH_MAX] = "";
  explicit OpenPath(int file) {
    if (!armed.active) return;
    const int error = errno;
    char link[32];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t length = ::readlink(link, text, sizeof text - 1);
    text[std::max<ssize_t>(length, 0)] = 0;
    errno = error;
  }
};
Verdict judge(int file) {
  return armed.active ? judge(OpenPath(file).text) : Verdict::pass;
}
// Judges a call that has no half: it succeeds, fails or is never made.
template <class Judged>
bool fails(Judged judged) {
  const Verdict verdict = judge(judged);
  if (verdict == Verdict::kill) end_process();
  return verdict == Verdict::fail;
}

void record(const FileChange& change) {
  if (!recorder || !(matches(change.path) || matches(change.to))) return;
  const int error = errno;
  recorder(change);
  errno = error;
}
void record(int file, FileChange change) {
  if (!recorder) return;
  const OpenPath path(file);
  change.path = path.text;
  record(change);
}

// Performs a write of `data` as judged. write(bytes) does the real call.
// at: offset in the file; -1: where the last write ended.
template <class Write>
ssize_t judged_write(int file, const void* data, size_t bytes, off_t at, Write write) {
  const Verdict verdict = judge(file);
  if (verdict == Verdict::fail) return -1;
  if (verdict == Verdict::lose) return static_cast<ssize_t>(bytes);
  const bool whole = verdict == Verdict::pass;
  const ssize_t written = write(whole ? bytes : (bytes + 1) / 2);
  if (verdict == Verdict::kill) end_process();
  if (recorder && written > 0) {
    if (at < 0) at = ::lseek(file, 0, SEEK_CUR) - written;
    if (at >= 0) record(file, {FileChange::write, "", "", at, data, static_cast<size_t>(written)});
  }
  return written;
}

bool starts() {
  const char* const path = std::getenv("FAULT_PATH");
  const char* const at = std::getenv("FAULT_AT");
  if (!path || !at) return false;
  const std::string error = std::getenv("FAULT_ERROR") ? std::getenv("FAULT_ERROR") : "ENOSPC";
  Fault fault{path, std::atol(at), ENOSPC, std::getenv("FAULT_LASTS") != nullptr, false};
  if (error == "EIO") fault.error = EIO;
  if (error == "EDQUOT") fault.error = EDQUOT;
  if (error == "half") fault.error = half_a_write;
  if (error == "lost") fault.error = lost_write;
  fault_arm(&fault);
  return true;
}
[[maybe_unused]] const bool started = starts();

}  // namespace

extern "C" {

void fault_arm(const Fault* fault) {
  armed.active = false;
  recorder = nullptr;
  calls = 0;
  if (!fault) return;
  armed.fault = *fault;
  std::snprintf(armed.path, sizeof armed.path, "%s", fault->path);
  armed.active = true;
}
long fault_calls() {
  return calls;
}
void fault_record(void (*record)(const FileChange&)) {
  recorder = record;
}

// ---- writes ----
ssize_t write(int file, const void* data, size_t bytes) {
  NEXT(write);
  return judged_write(file, data, bytes, -1, [&](size_t n) { return real(file, data, n); });
}
ssize_t pwrite(int file, const void* data, size_t bytes, off_t at) {
  NEXT(pwrite);
  return judged_write(file, data, bytes, at, [&](size_t n) { return real(file, data, n, at); });
}
ssize_t pwrite64(int file, const void* data, size_t bytes, off64_t at) {
  NEXT(pwrite64);
  return judged_write(file, data, bytes, at, [&](size_t n) { return real(file, data, n, at); });
}
// The buffers are not recorded. libstdc++ calls it for streams, which no recorded command uses.
ssize_t writev(int file, const struct iovec* buffers, int count) {
  NEXT(writev);
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += buffers[i].iov_len;
  return judged_write(file, buffers[0].iov_base, bytes, -1, [&](size_t n) {
    return n == bytes ? real(file, buffers, count)
                      : ::write(file, buffers[0].iov_base, std::min(n, buffers[0].iov_len));
  });
}
// The system calls of a stream are within libc, where they cannot be replaced. The program flushes
// after each line, and its streams only append.
size_t fwrite(const void* data, size_t size, size_t count, FILE* stream) {
  NEXT(fwrite);
  if (fails(fileno(stream))) return 0;
  const size_t written = real(data, size, count, stream);
  record(fileno(stream), {FileChange::append, "", "", 0, data, written * size});
  return written;
}
int fflush(FILE* stream) {
  NEXT(fflush);
  return stream && fails(fileno(stream)) ? EOF : real(stream);
}
int fclose(FILE* stream) {
  NEXT(fclose);
  const bool failed = fails(fileno(stream));
  const int error = errno, result = real(stream);
  if (!failed) return result;
  errno = error;
  return EOF;
}

// ---- calls that fail or succeed ----
// Records a change if the call has succeeded.
#define RECORDED(result, ...)            \
  const int result_ = (result);          \
  if (result_ == 0) record(__VA_ARGS__); \
  return result_

int ftruncate(int file, off_t size) {
  NEXT(ftruncate);
  if (fails(file)) return -1;
  RECORDED(real(file, size), file, {FileChange::truncate, "", "", size});
}
int ftruncate64(int file, off64_t size) {
  NEXT(ftruncate64);
  if (fails(file)) return -1;
  RECORDED(real(file, size), file, {FileChange::truncate, "", "", size});
}
int rename(const char* from, const char* to) {
  NEXT(rename);
  if (fails(to)) return -1;
  RECORDED(real(from, to), {FileChange::rename, from, to});
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) {
  NEXT(renameat2);
  if (fails(to)) return -1;
  RECORDED(real(a, from, b, to, flags),
           {flags & RENAME_EXCHANGE ? FileChange::exchange : FileChange::rename, from, to});
}
int mkdir(const char* path, mode_t mode) {
  NEXT(mkdir);
  if (fails(path)) return -1;
  RECORDED(real(path, mode), {FileChange::make_folder, path});
}
int posix_fallocate(int file, off_t at, off_t bytes) {
  NEXT(posix_fallocate);
  return fails(file) ? errno : real(file, at, bytes);
}
int posix_fallocate64(int file, off64_t at, off64_t bytes) {
  NEXT(posix_fallocate64);
  return fails(file) ? errno : real(file, at, bytes);
}
int fsync(int file) {
  NEXT(fsync);
  if (fails(file)) return -1;
  RECORDED(armed.active && armed.fault.no_sync ? 0 : real(file), file, {FileChange::sync, ""});
}
// The file is closed even if the call fails, as on Linux.
int close(int file) {
  NEXT(close);
  const int flags = armed.active ? ::fcntl(file, F_GETFL) : -1;
  const bool writes = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
  const bool failed = writes && fails(file);
  const int error = errno, result = real(file);
  if (!failed) return result;
  errno = error;
  return -1;
}
// The variants with 64 in their names have the same arguments.
#define FAULTY_OPEN(name)                                                     \
  int name(const char* path, int flags, ...) {                                \
    NEXT(name);                                                               \
    OPEN_MODE(flags);                                                         \
    if ((flags & O_CREAT) && fails(path)) return -1;                          \
    const int file = real(path, flags, mode);                                 \
    if (file >= 0 && (flags & O_CREAT)) record({FileChange::create, path});   \
    if (file >= 0 && (flags & O_TRUNC)) record({FileChange::truncate, path}); \
    return file;                                                              \
  }
#define FAULTY_FOPEN(name)                                              \
  FILE* name(const char* path, const char* mode) {                      \
    NEXT(name);                                                         \
    if (mode[0] != 'r' && fails(path)) return nullptr;                  \
    FILE* const stream = real(path, mode);                              \
    if (stream && mode[0] != 'r') record({FileChange::create, path});   \
    if (stream && mode[0] == 'w') record({FileChange::truncate, path}); \
    return stream;                                                      \
  }
FAULTY_OPEN(open)
FAULTY_OPEN(open64)
FAULTY_FOPEN(fopen)
FAULTY_FOPEN(fopen64)

// ---- removals ----
// Counts the call only if the fault counts removals.
#define FAULTY_REMOVAL(name)                            \
  int name(const char* path) {                          \
    NEXT(name);                                         \
    if (armed.fault.removals && fails(path)) return -1; \
    RECORDED(real(path), {FileChange::remove, path});   \
  }
FAULTY_REMOVAL(unlink)
FAULTY_REMOVAL(rmdir)
FAULTY_REMOVAL(remove)
int unlinkat(int folder, const char* name, int flags) {
  NEXT(unlinkat);
  char path[2 * PATH_MAX];
  std::snprintf(path, sizeof path, "%s%s%s", folder == AT_FDCWD || name[0] == '/' ? "" : OpenPath(folder).text,
                folder == AT_FDCWD || name[0] == '/' ? "" : "/", name);
  if (armed.fault.removals && fails(static_cast<const char*>(path))) return -1;
  RECORDED(real(folder, name, flags), {FileChange::remove, path});
}
}
