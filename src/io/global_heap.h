// Global heaps of HDF5 files, looked at before libhdf5 opens them.
//
// libhdf5 1.10 walks over the objects of a global heap by the sizes that the file gives. A forged size lets that walk stand still
// for ever, or leave the heap. Virtual datasets keep their parts in such heaps, and the library reads these as soon as it opens
// the dataset, before anything could be asked about it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sy {

class GlobalHeaps {
 public:
  // Looks for heaps in the file's bytes, which come piece by piece.
  void find(std::string_view piece);
  // Walks over those that were found. What is wrong with one of them; empty if nothing is.
  std::string problem(const std::filesystem::path& file) const;

 private:
  std::string tail_;  // of the pieces before
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> begins_;
};

}  // namespace sy
