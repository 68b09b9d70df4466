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
  std::string name;  // "/", "/load" or "/load/saturation"
  // In the order of writing.
  std::vector<std::pair<std::string, std::string>> attributes;
  std::optional<DType> dtype = {};  // of the array; empty for a group
  Shape shape = {};
  const void* data = nullptr;  // row-major
};

// Creates or replaces a file atomically: writes it under a temporary name, verifies it and renames
// it. Makes the missing groups of an array. Throws Failure.
void write_array_file(const std::filesystem::path& path, std::span<const ArrayFileEntry> entries);

}  // namespace sy
