// Choice of the ranks that read a file which all ranks need, so that no file is read by every rank.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "dist/comm.h"

namespace sy {

// Returns whether this rank reads a file or a folder that all ranks need. Collective.
// - Rank 0 reads it, and sends the content to the others.
// - The first rank of each machine reads it, too. Machines may have different files of one name.
// - A rank on which the path has another absolute form than on rank 0 reads it, too.
// The caller must compare the content between these ranks (dist/rank_settings.h).
bool reads_itself(Comm& world, const std::filesystem::path& path);

// Returns the result of `read` on the ranks that reads_itself() names, and that of rank 0 on all
// others. Throws CollectiveError if `read` throws on one of these ranks. Collective.
std::string read_for_all_ranks(Comm& world, const std::filesystem::path& path,
                               const std::function<std::string()>& read);

// Returns whether the text is equal on all ranks. Collective: one all-reduce of 16 bytes.
bool equal_on_all_ranks(Comm& world, std::string_view text);

}  // namespace sy
