#include "src/system/new_folders.h"

#include <unistd.h>

#include <vector>

#include "kernels/check.h"
#include "src/system/files.h"

namespace sy {

namespace fs = std::filesystem;

void make_synced_folders(const fs::path& path) {
  if (const std::error_code error = try_make_synced_folders(path))
    fail("cannot make the folder {}: {}", path.string(), error.message());
}

std::error_code try_make_synced_folders(const fs::path& path) {
  const auto parent_of = [](const fs::path& folder) { return folder.has_parent_path() ? folder.parent_path() : "."; };
  std::error_code error;
  std::vector<fs::path> parents;  // in which a name is made, the innermost first
  for (fs::path folder = path.has_filename() ? path : path.parent_path(); !fs::exists(folder, error);
       folder = parents.back()) {
    parents.push_back(parent_of(folder));
    if (parents.back() == folder) break;
  }
  write_point("mkdir", path);
  fs::create_directories(path, error);
  if (error) return error;
  for (const fs::path& parent : parents)
    if (::access(parent.c_str(), R_OK) == 0) sync_folder(parent);
  return {};
}

}  // namespace sy
