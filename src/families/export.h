// A checkpoint as a folder that Hugging Face's programs open: config.json, safetensors, and what was imported beside them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "src/data/run_tokenizer.h"
#include "src/families/family.h"
#include "src/io/checkpoint.h"

namespace sy {

class FamilyValues;
// By one rank. Throws Failure.
void keep_imported(const std::filesystem::path& folder, const FamilyValues& values,
                   const std::filesystem::path& run_dir);

// Compares files in RUN/huggingface with their digests: those that `names` lists, or all if it is
// empty. Throws InputError if one differs. Returns a warning if an older version of the program
// imported the model without digests, "" otherwise.
std::string check_imported(const std::filesystem::path& run_dir, const std::vector<std::string>& names = {});

// Compares the files of a tokenizer that RUN/huggingface keeps with their digests, as check_imported
// does. No-op for a tokenizer that is elsewhere.
void check_kept(const KeptTokenizer& tokenizer);

struct ExportOptions {
  std::string family;  // model_type; "": that of the imported model, or else the first that has words for this one
  std::string type;    // of the numbers: f32, bf16, f16; "": as imported, otherwise that of run.dtype
  Index file_bytes = 5'000'000'000;  // about how large files grow, where they are not as imported
};

// Collective: the ranks write their shares of the tensors into the same files, which are bitwise those that one rank writes.
// `folder` must not exist yet; it is there when it is whole. Returns, on rank 0, a note for a
// person if it has no tokenizer that transformers loads. Throws InputError where no family fits,
// which says why.
std::string export_checkpoint(Comm& world, const std::filesystem::path& step_dir, const TrainState& state,
                              const Config& config, const std::filesystem::path& folder, const ExportOptions& options,
                              const std::function<void(Index done, Index total)>& progress);

}  // namespace sy
