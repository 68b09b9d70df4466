// manifest.json: the files of a checkpoint with their sizes and SHA-256 digests. It is written
// last. Readers verify the files with it before anything else opens them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

constexpr Index checkpoint_format = 1;

struct Manifest {
  struct File {
    std::string name;
    Index bytes = 0;
    std::string sha256;
  };
  Index step = 0;
  std::vector<File> files;
};

// Returns the file's text.
// It ends with the digest of the text before, so that a damaged manifest is noticed too.
std::string to_text(const Manifest& manifest);

// Reads the text of a manifest. Throws InputError if the folder is no checkpoint, or if the
// manifest is missing or too large.
std::string read_manifest_text(const std::filesystem::path& step_dir);
// Parses the text. Throws InputError if it is damaged or of an unknown format, or if the folder has
// the name of another step.
Manifest parse_manifest(const std::string& text, const std::filesystem::path& step_dir);
// Does both.
Manifest read_manifest(const std::filesystem::path& step_dir);

// Returns a message if a file is missing or has not the expected number of bytes; otherwise "".
std::string size_problem(const std::filesystem::path& path, Index expected);

// Returns a message for each missing or damaged file of the manifest. CheckFiles::sizes compares
// sizes alone, which is enough if the folder was verified before.
// names: checks only these files. nullptr means all.
enum class CheckFiles { sizes, digests };
std::vector<std::string> file_problems(const std::filesystem::path& step_dir, const Manifest& manifest,
                                       CheckFiles check, const std::set<std::string>* names = nullptr);
// Returns the problem of a file whose bytes are `content`; "" if its digest is that of the manifest
// and a reader may open it.
std::string content_problem(const std::filesystem::path& step_dir, const Manifest& manifest, const Manifest::File& file,
                            std::string_view content);

// Returns shard `index` of the manifest and every size-th one after it.
std::set<std::string> shard_share(const Manifest& manifest, int index, int size);

// Returns the names in a folder; empty if it does not exist.
// Throws InputError if it cannot be read.
std::set<std::string> names_in(const std::filesystem::path& folder);

// Number and bytes of the files whose digests this process has computed to verify checkpoints.
// Tests have upper bounds for them.
struct DigestCounts {
  std::uint64_t files = 0, bytes = 0;
};
DigestCounts& digest_counts();

// Conversions between RUN, RUN/checkpoints, step names ("step-00000200") and steps.
std::filesystem::path checkpoints_of(const std::filesystem::path& run_dir);
// Returns the run that contains a step folder; empty if the folder was copied elsewhere.
std::optional<std::filesystem::path> run_of(const std::filesystem::path& step_dir);
std::string step_name(Index step);
std::optional<Index> step_of(const std::string& name);
// Returns the steps that have a folder below RUN/checkpoints, newest first.
std::vector<Index> steps_in(const std::filesystem::path& checkpoints);

constexpr const char* manifest_name = "manifest.json";

}  // namespace sy
