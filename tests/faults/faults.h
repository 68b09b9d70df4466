// Makes a system call that changes the disk fail: the n-th of those on the paths of a test.
//
// Its functions stand before those of libc. A program that they are part of calls fault_arm(); any other is started with
//   LD_PRELOAD=libfaults.so FAULT_PATH=TEXT FAULT_AT=N [FAULT_ERROR=ENOSPC|EIO|EDQUOT|half|lost] [FAULT_LASTS=1] PROGRAM
// Counted are the calls on paths that hold TEXT: writes, truncations, allocations, fsync, rename, mkdir, the making of a file,
// and the close of a file that was open for writing. Calls are counted from 1 in each process.
#pragma once

// For writes alone; other calls succeed.
constexpr int half_a_write = 0;  // half of the bytes are written, as the caller is told
constexpr int lost_write = -1;   // none are, though the caller is told that all are

extern "C" {

struct Fault {
  const char* path = "";  // part of the path of the calls that are counted
  long at = 0;            // the call that fails; 0: none
  int error = 0;          // its errno, half_a_write or lost_write
  bool lasts = false;     // all later ones fail, too
  bool no_sync = false;   // fsync does nothing, which makes a test quick
};

void fault_arm(const Fault* fault);  // nullptr: no call is looked at any more
long fault_calls();                  // that were counted since then
}
