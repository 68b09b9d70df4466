// Facts about the HDF5 library, for the check of a machine.
#pragma once

#include <string>

namespace sy {

// version and thread_safe: of the loaded library. parallel: of the headers.
struct Hdf5Library {
  std::string version;  // "1.10.8"
  bool thread_safe = false, parallel = false;
  bool locks = false;  // $HDF5_USE_FILE_LOCKING enables file locks, which the file system must have
};
Hdf5Library hdf5_library();

}  // namespace sy
