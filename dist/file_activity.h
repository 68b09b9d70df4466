// Reads and writes of files by this process: their numbers, and injected faults.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

namespace sy {

// Counters and fault hook of the reads and writes of files.
struct FileActivity {
  // Number of file chunks that have been read or written. The watchdog sees it as progress.
  std::atomic<std::uint64_t> chunks{0};
  // Number of files of checkpoints that were opened for reading. Tests limit it.
  std::atomic<std::uint64_t> opened{0};
  // Fault injection: a test sets it to throw at the n-th call. Empty in production.
  // Code that writes checkpoints, data sets or exports calls it before each operation.
  std::function<void(std::string_view operation, const std::filesystem::path& path)> write_fault;
};

// Returns the activity of this process. There is one per process: any thread may use files, also
// without a rank. RankContext::files refers to it.
inline FileActivity& file_activity() {
  static FileActivity activity;
  return activity;
}

}  // namespace sy
