#include "src/io/hdf5/hdf5_library.h"

#include <hdf5.h>

#include <cstdlib>
#include <string_view>

#include "kernels/check.h"

namespace sy {

Hdf5Library hdf5_library() {
  Hdf5Library library;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  library.version = fmt::format("{}.{}.{}", major, minor, release);
  hbool_t thread_safe = false;
  H5is_library_threadsafe(&thread_safe);
  library.thread_safe = thread_safe;
#ifdef H5_HAVE_PARALLEL
  library.parallel = true;
#endif
  const char* const locking = std::getenv("HDF5_USE_FILE_LOCKING");
  library.locks = locking && (std::string_view(locking) == "TRUE" || std::string_view(locking) == "1");
  return library;
}

}  // namespace sy
