#include "src/io/hdf5/array_file.h"

#include <unistd.h>

#include "kernels/check.h"
#include "src/io/hdf5/hdf5.h"
#include "src/system/files.h"

namespace sy {

void write_array_file(const std::filesystem::path& path, std::span<const ArrayFileEntry> entries) {
  const std::filesystem::path partial = fmt::format("{}.partial{}", path.string(), ::getpid());
  // An ended process that had the same number may have left this file.
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
  try {
    Hdf5File file = Hdf5File::create(partial);
    for (const ArrayFileEntry& entry : entries) {
      if (entry.dtype)
        file.write(entry.name, entry.shape, *entry.dtype, entry.data);
      else
        file.make_group(entry.name);
      for (const auto& [attribute, value] : entry.attributes) file.set(entry.name, attribute, value);
    }
    file.close();
    file.verify();
    rename_file(partial, path);
  } catch (...) {
    std::filesystem::remove(partial, ignored);
    throw;
  }
}

}  // namespace sy
