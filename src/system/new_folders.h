// New folders whose names survive a power loss.
#pragma once

#include <filesystem>
#include <system_error>

namespace sy {

// Makes a folder with missing parents, and syncs each new name to the folder that holds it. A
// folder that this user may not read cannot be synced. No-op if `path` exists. Throws Failure.
void make_synced_folders(const std::filesystem::path& path);
// The same, but returns the error of mkdir. Throws Failure if a sync fails.
std::error_code try_make_synced_folders(const std::filesystem::path& path);

}  // namespace sy
