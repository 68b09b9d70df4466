// The formats of checkpoints, and opening a checkpoint of any of them.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/io/checkpoint_folder.h"
#include "src/io/format/checkpoint_format.h"
#include "src/io/manifest.h"

namespace sy {

// Returns all formats that are read. The first is the one that is written.
std::span<const CheckpointFormat* const> checkpoint_formats();

// Returns the format whose index the manifest lists; the first format if it lists no index.
const CheckpointFormat& format_of(const Manifest& manifest);

// Returns the message that the manifest of a checkpoint does not list a file.
std::string unlisted_text(const std::filesystem::path& step_dir, const std::string& name);
// Throws InputError with that message unless the manifest lists the file. Returns its entry.
const Manifest::File& check_listed(const std::filesystem::path& step_dir, const Manifest& manifest,
                                   const std::string& name);
// Returns the index and the linked indexes of the manifest. The index is first, and has 0 bytes if
// the manifest does not list it.
std::vector<Manifest::File> index_files(const Manifest& manifest);

struct OpenCheckpoint {
  Manifest manifest;
  std::unique_ptr<CheckpointReader> reader;
};
// Opens the index of a checkpoint. It and the reader throw InputError if a file that they open has
// another size than in the manifest.
OpenCheckpoint open_checkpoint(const CheckpointFolder& folder);

}  // namespace sy
