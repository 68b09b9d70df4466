// Check of the global heaps of an HDF5 file before libhdf5 opens it.
//
// libhdf5 1.10 trusts the object sizes in a global heap. A forged size makes it loop forever or
// read outside the heap. Opening a virtual dataset is enough to trigger this.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sy {

// Usage: call scan() with all chunks of a file in order, then problem() with the same file.
class GlobalHeaps {
 public:
  // Records the heaps in the next chunk of the file.
  void scan(std::string_view chunk);
  // Checks the recorded heaps. Returns an error message; empty if all heaps are valid.
  std::string problem(const std::filesystem::path& file) const;

 private:
  std::string tail_;  // last bytes of the previous chunks
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> begins_;
};

}  // namespace sy
