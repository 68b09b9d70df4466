// Check of the global heaps of an HDF5 file before libhdf5 opens it.
//
// libhdf5 1.10 trusts the object sizes in a global heap. A forged size makes it loop forever or
// read outside the heap. Opening a virtual dataset is enough to trigger this. It also trusts the
// mappings in the objects of the heap, whose dimensions it copies to an array of 32. Files of this
// program have no other objects there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/format/checkpoint_format.h"

namespace sy {

class GlobalHeaps final : public FileCheck {
 public:
  // Records the heaps in the next chunk of the file.
  void scan(std::string_view chunk) override;
  // Checks the recorded heaps. Returns an error message; empty if all heaps are valid.
  std::string problem(const std::filesystem::path& file, const std::string_view* content) const override;

 private:
  std::string tail_;  // last bytes of the previous chunks
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> begins_;
};

}  // namespace sy
