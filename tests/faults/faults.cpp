#include "tests/faults/faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Armed {
  bool active = false;
  char path[PATH_MAX] = "";
  Fault fault;
};
Armed armed;
std::atomic<long> calls = 0;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
// Defines `real` as the libc function that is replaced.
#define NEXT(name) static const auto real = next<decltype(&name)>(#name)

enum class Verdict { pass, fail, half, lose };

// Counts a call on `path` and decides on it. errno is set if it fails.
Verdict judge(const char* path) {
  if (!armed.active || !path || !std::strstr(path, armed.path)) return Verdict::pass;
  const long n = ++calls;
  if (armed.fault.at == 0 || n < armed.fault.at || (n > armed.fault.at && !armed.fault.lasts)) return Verdict::pass;
  if (armed.fault.error == half_a_write) return Verdict::half;
  if (armed.fault.error == lost_write) return Verdict::lose;
  errno = armed.fault.error;
  return Verdict::fail;
}
Verdict judge(int file) {
  if (!armed.active) return Verdict::pass;
  char link[32], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = ::readlink(link, path, sizeof path - 1);
  if (length < 0) return Verdict::pass;
  path[length] = 0;
  return judge(path);
}

// Performs a write as judged. write(bytes) does the real call.
template <class Write>
ssize_t judged_write(int file, size_t bytes, Write write) {
  switch (judge(file)) {
    case Verdict::fail:
      return -1;
    case Verdict::half:
      return write((bytes + 1) / 2);
    case Verdict::lose:
      return static_cast<ssize_t>(bytes);
    case Verdict::pass:
      break;
  }
  return write(bytes);
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
  calls = 0;
  if (!fault) return;
  armed.fault = *fault;
  std::snprintf(armed.path, sizeof armed.path, "%s", fault->path);
  armed.active = true;
}
long fault_calls() {
  return calls;
}

// ---- writes ----
ssize_t write(int file, const void* data, size_t bytes) {
  NEXT(write);
  return judged_write(file, bytes, [&](size_t n) { return real(file, data, n); });
}
ssize_t pwrite(int file, const void* data, size_t bytes, off_t at) {
  NEXT(pwrite);
  return judged_write(file, bytes, [&](size_t n) { return real(file, data, n, at); });
}
ssize_t pwrite64(int file, const void* data, size_t bytes, off64_t at) {
  NEXT(pwrite64);
  return judged_write(file, bytes, [&](size_t n) { return real(file, data, n, at); });
}
ssize_t writev(int file, const struct iovec* buffers, int count) {
  NEXT(writev);
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += buffers[i].iov_len;
  return judged_write(file, bytes, [&](size_t n) {
    return n == bytes ? real(file, buffers, count)
                      : ::write(file, buffers[0].iov_base, std::min(n, buffers[0].iov_len));
  });
}
// The system calls of a stream are within libc, where they cannot be replaced.
size_t fwrite(const void* data, size_t size, size_t count, FILE* stream) {
  NEXT(fwrite);
  return judge(fileno(stream)) == Verdict::fail ? 0 : real(data, size, count, stream);
}
int fflush(FILE* stream) {
  NEXT(fflush);
  return stream && judge(fileno(stream)) == Verdict::fail ? EOF : real(stream);
}
int fclose(FILE* stream) {
  NEXT(fclose);
  const Verdict verdict = judge(fileno(stream));
  const int error = errno, result = real(stream);
  if (verdict != Verdict::fail) return result;
  errno = error;
  return EOF;
}

// ---- calls that fail or succeed ----
#define FAULTY(name, judged, parameters, arguments)              \
  int name parameters {                                          \
    NEXT(name);                                                  \
    return judge(judged) == Verdict::fail ? -1 : real arguments; \
  }
FAULTY(ftruncate, file, (int file, off_t size), (file, size))
FAULTY(ftruncate64, file, (int file, off64_t size), (file, size))
FAULTY(rename, to, (const char* from, const char* to), (from, to))
FAULTY(renameat2, to, (int a, const char* from, int b, const char* to, unsigned flags), (a, from, b, to, flags))
FAULTY(mkdir, path, (const char* path, mode_t mode), (path, mode))

int posix_fallocate(int file, off_t at, off_t bytes) {
  NEXT(posix_fallocate);
  return judge(file) == Verdict::fail ? errno : real(file, at, bytes);
}
int posix_fallocate64(int file, off64_t at, off64_t bytes) {
  NEXT(posix_fallocate64);
  return judge(file) == Verdict::fail ? errno : real(file, at, bytes);
}
int fsync(int file) {
  NEXT(fsync);
  if (judge(file) == Verdict::fail) return -1;
  return armed.active && armed.fault.no_sync ? 0 : real(file);
}
// The file is closed even if the call fails, as on Linux.
int close(int file) {
  NEXT(close);
  const int flags = armed.active ? ::fcntl(file, F_GETFL) : -1;
  const bool writes = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
  const Verdict verdict = writes ? judge(file) : Verdict::pass;
  const int error = errno, result = real(file);
  if (verdict != Verdict::fail) return result;
  errno = error;
  return -1;
}
// The variants with 64 in their names have the same arguments.
#define FAULTY_OPEN(name)                                             \
  int name(const char* path, int flags, ...) {                        \
    NEXT(name);                                                       \
    va_list rest;                                                     \
    va_start(rest, flags);                                            \
    const mode_t mode = va_arg(rest, mode_t);                         \
    va_end(rest);                                                     \
    if ((flags & O_CREAT) && judge(path) == Verdict::fail) return -1; \
    return real(path, flags, mode);                                   \
  }
#define FAULTY_FOPEN(name)                                                              \
  FILE* name(const char* path, const char* mode) {                                      \
    NEXT(name);                                                                         \
    return mode[0] != 'r' && judge(path) == Verdict::fail ? nullptr : real(path, mode); \
  }
FAULTY_OPEN(open)
FAULTY_OPEN(open64)
FAULTY_FOPEN(fopen)
FAULTY_FOPEN(fopen64)
}
