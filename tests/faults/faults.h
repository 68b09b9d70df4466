// Fault injection: the n-th system call that changes files on given paths fails.
//
// These functions replace those of libc. A program that is linked with them calls fault_arm(). Any
// other program is started with
//   LD_PRELOAD=libfaults.so FAULT_PATH=TEXT FAULT_AT=N
//   [FAULT_ERROR=ENOSPC|EIO|EDQUOT|half|lost] [FAULT_LASTS=1] PROGRAM
// Calls on paths that contain TEXT are counted from 1 in each process. These are writes,
// truncations, allocations, fsync, rename, mkdir, the creation of a file, and the close of a file
// that was opened for writing.
#pragma once

// Errors of writes; other calls succeed.
constexpr int half_a_write = 0;  // writes half of the bytes, and returns their number
constexpr int lost_write = -1;   // writes nothing, and returns the full number of bytes

extern "C" {

struct Fault {
  const char* path = "";  // substring of the paths of counted calls
  long at = 0;            // number of the call that fails; 0: no call fails
  int error = 0;          // its errno, half_a_write or lost_write
  bool lasts = false;     // true: all later calls fail too
  bool no_sync = false;   // true: fsync does nothing, which saves time in tests
};

void fault_arm(const Fault* fault);  // starts counting at 0; nullptr: stops counting
long fault_calls();                  // number of calls counted since fault_arm()
}
