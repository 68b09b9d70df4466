// manifest.json: which files a checkpoint consists of, with their sizes and SHA-256 digests. It is written
// last, and says whether the others are whole before anything else opens them.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
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

// The file's text. It ends with the digest of what precedes it, so that a changed manifest is noticed too.
std::string to_text(const Manifest& manifest);

// Throws InputError: no checkpoint folder, no manifest, a damaged one, a format that this program does not
// know, a folder that is named after another step.
Manifest read_manifest(const std::filesystem::path& step_dir);

// What the folder holds otherwise than its manifest says: missing and damaged files, each named.
// Without digests only sizes are compared: quick, and enough for a folder that has been verified before.
enum class CheckFiles { sizes, digests };
std::vector<std::string> file_problems(const std::filesystem::path& step_dir, const Manifest& manifest,
                                       CheckFiles check);

// The names in a folder; none where there is none. Throws InputError where it cannot be read.
std::set<std::string> names_in(const std::filesystem::path& folder);

// RUN/checkpoints, "step-00000200", and back.
std::filesystem::path checkpoints_of(const std::filesystem::path& run_dir);
// The run that a step folder lies in; none where it was copied elsewhere.
std::optional<std::filesystem::path> run_of(const std::filesystem::path& step_dir);
std::string step_name(Index step);
std::optional<Index> step_of(const std::string& name);
// The steps that have a folder below RUN/checkpoints, newest first.
std::vector<Index> steps_in(const std::filesystem::path& checkpoints);

std::string shard_name(int rank);  // "shard-00003.h5"
constexpr const char* index_name = "index.h5";
constexpr const char* manifest_name = "manifest.json";

}  // namespace sy
