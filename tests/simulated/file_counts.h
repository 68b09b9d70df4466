// Counts of calls of this process that open files or folders, or ask for their status.
#pragma once

namespace sy::test {

struct FileCounts {
  long opens = 0;     // open, openat, fopen, opendir
  long statuses = 0;  // stat, lstat, fstatat, statx, access
};
// Starts to count calls on paths that contain `text`, of at most 4,095 bytes.
void count_files(const char* text);
// Returns the calls since count_files().
FileCounts file_counts();

}  // namespace sy::test
