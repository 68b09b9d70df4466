// These functions replace those of libc, in the program and in its libraries.
#include "tests/simulated/file_counts.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "tests/faults/next.h"

namespace {

char counted_text[4096] = "";
std::atomic<bool> counts = false;
std::atomic<long> opens = 0, statuses = 0;

void count(const char* path, std::atomic<long>& calls) {
  if (counts && path && std::strstr(path, counted_text)) ++calls;
}

}  // namespace

namespace sy::test {

void count_files(const char* text) {
  counts = false;
  opens = statuses = 0;
  std::snprintf(counted_text, sizeof(counted_text), "%s", text);
  counts = true;
}
FileCounts file_counts() {
  return {opens, statuses};
}

}  // namespace sy::test

extern "C" {

#define COUNTED_OPEN(name)                     \
  int name(const char* path, int flags, ...) { \
    NEXT(name);                                \
    OPEN_MODE(flags);                          \
    count(path, opens);                        \
    return real(path, flags, mode);            \
  }
COUNTED_OPEN(open)
COUNTED_OPEN(open64)

#define COUNTED_OPENAT(name)                               \
  int name(int folder, const char* path, int flags, ...) { \
    NEXT(name);                                            \
    OPEN_MODE(flags);                                      \
    count(path, opens);                                    \
    return real(folder, path, flags, mode);                \
  }
COUNTED_OPENAT(openat)
COUNTED_OPENAT(openat64)

#define COUNTED_FOPEN(name)                        \
  FILE* name(const char* path, const char* mode) { \
    NEXT(name);                                    \
    count(path, opens);                            \
    return real(path, mode);                       \
  }
COUNTED_FOPEN(fopen)
COUNTED_FOPEN(fopen64)

DIR* opendir(const char* path) {
  NEXT(opendir);
  count(path, opens);
  return real(path);
}

#define COUNTED_STATUS(name, type)              \
  int name(const char* path, struct type* to) { \
    NEXT(name);                                 \
    count(path, statuses);                      \
    return real(path, to);                      \
  }
COUNTED_STATUS(stat, stat)
COUNTED_STATUS(lstat, stat)
COUNTED_STATUS(stat64, stat64)
COUNTED_STATUS(lstat64, stat64)

int access(const char* path, int mode) {
  NEXT(access);
  count(path, statuses);
  return real(path, mode);
}
int fstatat(int folder, const char* path, struct stat* to, int flags) {
  NEXT(fstatat);
  count(path, statuses);
  return real(folder, path, to, flags);
}
int statx(int folder, const char* path, int flags, unsigned mask, struct statx* to) {
  NEXT(statx);
  count(path, statuses);
  return real(folder, path, flags, mask, to);
}
}
