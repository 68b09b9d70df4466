// Fault injection: the n-th system call that changes files on given paths fails.
//
// These functions replace those of libc. A program that is linked with them calls fault_arm(). Any
// other program is started with
//   LD_PRELOAD=libfaults.so FAULT_PATH=TEXT FAULT_AT=N
//   [FAULT_ERROR=ENOSPC|EIO|EDQUOT|half|lost] [FAULT_LASTS=1] PROGRAM
// Calls on paths that contain TEXT are counted from 1 in each process. These are writes,
// truncations, allocations, fsync, rename, mkdir, the creation of a file, and the close of a file
// that was opened for writing.
//
// fault_record() receives the changes of files, so that a test can replay a part of them.
#pragma once

#include <cstddef>

// Errors of writes; other calls succeed.
constexpr int half_a_write = 0;  // writes half of the bytes, and returns their number
constexpr int lost_write = -1;   // writes nothing, and returns the full number of bytes
// Errors of all calls: SIGKILL ends the process.
constexpr int kill_before = -2;   // before the call
constexpr int kill_halfway = -3;  // after half of the bytes of a write; before any other call

// Calls that read. A fault may count them in place of the calls that change files.
constexpr int fault_opens = 1;    // open, openat, fopen and opendir of a file that must exist
constexpr int fault_lookups = 2;  // stat, lstat, fstatat, access and realpath
constexpr int fault_data = 4;     // read, pread, fstat and readdir

extern "C" {

struct Fault {
  const char* path = "";  // substring of the paths of counted calls
  long at = 0;            // number of the call that fails; 0: no call fails
  int error = 0;          // its errno, half_a_write or lost_write
  bool lasts = false;     // true: all later calls fail too
  bool no_sync = false;   // true: fsync does nothing, which saves time in tests
  bool removals = false;  // true: unlink, rmdir and remove are counted too
  int reads = 0;          // sum of fault_opens, ...: these calls alone are counted
};

// A change of files that has succeeded.
struct FileChange {
  // create: of a file that may exist already. exchange: of two names. remove: of a name.
  enum Kind { create, write, append, truncate, sync, rename, exchange, make_folder, remove } kind;
  const char* path;
  const char* to = "";         // new name of rename and exchange
  long offset = 0;             // of write; the new size of truncate
  const void* data = nullptr;  // of write and append
  std::size_t bytes = 0;
};

void fault_arm(const Fault* fault);  // starts counting at 0; nullptr: stops counting
long fault_calls();                  // number of calls counted since a fault was armed
long fault_reads(int kinds);         // the same of these kinds of calls that read
// Calls `record` after each change of a file on the armed paths. Any thread may call it.
void fault_record(void (*record)(const FileChange&));
}
