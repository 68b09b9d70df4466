// HDF5 files of arrays that a command writes, as for `experts --hdf5`.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// A group or an array of a file, with its attributes.
struct ArrayFileEntry {
  std::string name;                                             // "/", "/load" or "/load/saturation"
  std::vector<std::pair<std::string, std::string>> attributes;  // in the order of writing
  std::optional<DType> dtype = {};                              // of the array; empty for a group
  Shape shape = {};
  const void* data = nullptr;  // row-major
};

// Creates or replaces a file atomically: it is written under a temporary name, verified and renamed.
// Missing groups of an array are made. Throws Failure.
void write_array_file(const std::filesystem::path& path, std::span<const ArrayFileEntry> entries);

}  // namespace sy
