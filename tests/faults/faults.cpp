#include "tests/faults/faults.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
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
std::atomic<long> reads[3] = {};  // calls of fault_opens, fault_lookups and fault_data
void (*recorder)(const FileChange&) = nullptr;

enum class Verdict { pass, fail, half, lose, kill };

[[noreturn]] void end_process() {
  for (;;) ::kill(::getpid(), SIGKILL);
}

bool matches(const char* path) {
  return armed.active && path && std::strstr(path, armed.path);
}

// Counts a call, and decides on it. errno is set if it fails.
Verdict decide() {
  const long n = ++calls;
  if (armed.fault.at == 0 || n < armed.fault.at || (n > armed.fault.at && !armed.fault.lasts)) return Verdict::pass;
  if (armed.fault.error == kill_before) end_process();
  if (armed.fault.error == kill_halfway) return Verdict::kill;
  if (armed.fault.error == half_a_write) return Verdict::half;
  if (armed.fault.error == lost_write) return Verdict::lose;
  errno = armed.fault.error;
  return Verdict::fail;
}
// Judges a call that changes files.
Verdict judge(const char* path) {
  return armed.fault.reads == 0 && matches(path) ? decide() : Verdict::pass;
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

bool counts_reads(int kind) {
  return armed.active && (armed.fault.reads & kind) != 0;
}
// Judges a call that reads. folder: that of a relative path.
bool read_fails(int kind, const char* path, int folder = AT_FDCWD) {
  if (!counts_reads(kind) || !path) return false;
  char whole[2 * PATH_MAX];
  char current[PATH_MAX] = "";
  if (path[0] != '/' && folder == AT_FDCWD && !::getcwd(current, sizeof current)) return false;
  std::snprintf(whole, sizeof whole, "%s%s%s",
                path[0] == '/'       ? ""
                : folder == AT_FDCWD ? current
                                     : OpenPath(folder).text,
                path[0] == '/' ? "" : "/", path);
  if (!matches(whole)) return false;
  ++reads[kind / 2];
  return decide() == Verdict::fail;
}
bool read_fails(int kind, int file) {
  return counts_reads(kind) && read_fails(kind, OpenPath(file).text);
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

// Records the size of a file that a call has extended.
void record_size(int file) {
  struct stat status {};
  if (recorder && ::fstat(file, &status) == 0) record(file, {FileChange::truncate, "", "", status.st_size});
}

// The file that is mapped at an address; empty if there is none, or if no fault is armed.
struct MappedPath {
  char text[PATH_MAX] = "";
  long offset = 0;        // in the file
  std::size_t bytes = 0;  // up to the end of the mapping
  explicit MappedPath(const void* address) {
    std::FILE* const maps = armed.active ? std::fopen("/proc/self/maps", "re") : nullptr;
    if (!maps) return;
    char line[PATH_MAX + 128];
    while (std::fgets(line, sizeof line, maps)) {
      unsigned long begin = 0, end = 0, at = 0;
      int name = 0;
      const auto sought = reinterpret_cast<unsigned long>(address);
      if (std::sscanf(line, "%lx-%lx %*s %lx %*s %*s %n", &begin, &end, &at, &name) < 3 || name == 0 ||
          sought < begin || sought >= end)
        continue;
      line[std::strcspn(line, "\n")] = 0;
      std::snprintf(text, sizeof text, "%s", line + name);
      offset = static_cast<long>(at + (sought - begin));
      bytes = end - sought;
    }
    std::fclose(maps);
  }
};

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
  if (!fault) return;
  calls = 0;
  for (auto& count : reads) count = 0;
  armed.fault = *fault;
  std::snprintf(armed.path, sizeof armed.path, "%s", fault->path);
  armed.active = true;
}
long fault_calls() {
  return calls;
}
long fault_reads(int kinds) {
  long sum = 0;
  for (int i = 0; i < 3; ++i) sum += kinds >> i & 1 ? reads[i].load() : 0;
  return sum;
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
// A record has the first buffer alone. libstdc++ calls it for streams, which no recorded command
// uses.
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
// after each line of a log, and syncs other files after their streams are closed.
size_t fwrite(const void* data, size_t size, size_t count, FILE* stream) {
  NEXT(fwrite);
  if (fails(fileno(stream))) return 0;
  const bool appends = recorder && (::fcntl(fileno(stream), F_GETFL) & O_APPEND);
  const long at = recorder && !appends ? std::ftell(stream) : 0;
  const size_t written = real(data, size, count, stream);
  record(fileno(stream), {appends ? FileChange::append : FileChange::write, "", "", at, data, written * size});
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
  if (fails(file)) return errno;
  const int error = real(file, at, bytes);
  if (error == 0) record_size(file);
  return error;
}
int posix_fallocate64(int file, off64_t at, off64_t bytes) {
  NEXT(posix_fallocate64);
  if (fails(file)) return errno;
  const int error = real(file, at, bytes);
  if (error == 0) record_size(file);
  return error;
}
// The bytes of a mapped file change without a call. All of them count as written before the sync.
int msync(void* begin, size_t bytes, int flags) {
  NEXT(msync);
  MappedPath mapped(begin);
  if (fails(static_cast<const char*>(mapped.text))) return -1;
  const int result = real(begin, bytes, flags);
  if (result == 0) {
    record({FileChange::write, mapped.text, "", mapped.offset, begin, std::min(bytes, mapped.bytes)});
    record({FileChange::sync, mapped.text});
  }
  return result;
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
    if (!(flags & O_CREAT) && read_fails(fault_opens, path)) return -1;       \
    const int file = real(path, flags, mode);                                 \
    if (file >= 0 && (flags & O_CREAT)) record({FileChange::create, path});   \
    if (file >= 0 && (flags & O_TRUNC)) record({FileChange::truncate, path}); \
    return file;                                                              \
  }
#define FAULTY_FOPEN(name)                                               \
  FILE* name(const char* path, const char* mode) {                       \
    NEXT(name);                                                          \
    if (mode[0] != 'r' && fails(path)) return nullptr;                   \
    if (mode[0] == 'r' && read_fails(fault_opens, path)) return nullptr; \
    FILE* const stream = real(path, mode);                               \
    if (stream && mode[0] != 'r') record({FileChange::create, path});    \
    if (stream && mode[0] == 'w') record({FileChange::truncate, path});  \
    return stream;                                                       \
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

// ---- calls that read ----
int openat(int folder, const char* path, int flags, ...) {
  NEXT(openat);
  OPEN_MODE(flags);
  return read_fails(fault_opens, path, folder) ? -1 : real(folder, path, flags, mode);
}
DIR* opendir(const char* path) {
  NEXT(opendir);
  return read_fails(fault_opens, path) ? nullptr : real(path);
}
// Defines a function that fails with the result `failure`. kind: of faults.h. target: path or file.
#define FAULTY_READ(result, name, parameters, arguments, kind, target, failure) \
  result name parameters {                                                      \
    NEXT(name);                                                                 \
    return read_fails(kind, target) ? failure : real arguments;                 \
  }
FAULTY_READ(int, stat, (const char* path, struct stat* status), (path, status), fault_lookups, path, -1)
FAULTY_READ(int, stat64, (const char* path, struct stat64* status), (path, status), fault_lookups, path, -1)
FAULTY_READ(int, lstat, (const char* path, struct stat* status), (path, status), fault_lookups, path, -1)
FAULTY_READ(int, lstat64, (const char* path, struct stat64* status), (path, status), fault_lookups, path, -1)
FAULTY_READ(int, access, (const char* path, int mode), (path, mode), fault_lookups, path, -1)
FAULTY_READ(char*, realpath, (const char* path, char* result), (path, result), fault_lookups, path, nullptr)
FAULTY_READ(int, fstat, (int file, struct stat* status), (file, status), fault_data, file, -1)
FAULTY_READ(int, fstat64, (int file, struct stat64* status), (file, status), fault_data, file, -1)
FAULTY_READ(ssize_t, read, (int file, void* data, size_t bytes), (file, data, bytes), fault_data, file, -1)
FAULTY_READ(ssize_t, pread, (int file, void* data, size_t bytes, off_t at), (file, data, bytes, at), fault_data, file,
            -1)
FAULTY_READ(ssize_t, pread64, (int file, void* data, size_t bytes, off64_t at), (file, data, bytes, at), fault_data,
            file, -1)
FAULTY_READ(dirent*, readdir, (DIR * folder), (folder), fault_data, dirfd(folder), nullptr)
FAULTY_READ(dirent64*, readdir64, (DIR * folder), (folder), fault_data, dirfd(folder), nullptr)
int fstatat(int folder, const char* path, struct stat* status, int flags) {
  NEXT(fstatat);
  return read_fails(fault_lookups, path, folder) ? -1 : real(folder, path, status, flags);
}
}
