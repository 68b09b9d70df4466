// Helpers shared by hdf5.cpp and hdf5_read.cpp: checked return codes, types and spaces. This is the
// only header that includes the library's own.
#pragma once

#include <hdf5.h>

#include <string>
#include <string_view>
#include <vector>

#include "src/io/hdf5/hdf5.h"

namespace sy::h5 {

[[noreturn]] void throw_error(const Hdf5Context& context, std::string_view action, const std::string& object);

// Returns `result`, the code of a call that failed if negative.
template <class Result>
Result check(Result result, const Hdf5Context& context, std::string_view action, const std::string& object = "") {
  if (result < 0) throw_error(context, action, object);
  return result;
}

struct Types {
  DType dtype;
  hid_t file, memory;
};
std::array<Types, 4> type_table();
Types types_of(DType dtype);

using Dims = std::array<hsize_t, max_dims>;

Hdf5Id make_dataspace(const Shape& shape);
// Selects the elements of `box` in a space of `shape`.
Hdf5Id make_dataspace(const Shape& shape, const Box& box, const Hdf5Context& context);

Hdf5Id property_list(hid_t kind);
Hdf5Id file_access();
// Throws NoMemory if a file cannot be opened for lack of memory. HDF5 1.10 crashes if it cannot
// allocate the cache of a file, so a larger block is allocated and freed before.
void check_cache_memory(const std::filesystem::path& file);

// Returns the objects on the path to `name`: "/a/b/c" -> "/a", "/a/b", "/a/b/c".
std::vector<std::string> path_to(const std::string& name);

}  // namespace sy::h5
