// Export of a checkpoint to a Hugging Face model folder: config.json, safetensors and tokenizer
// files.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "src/data/run_tokenizer.h"
#include "src/families/family.h"
#include "src/io/checkpoint.h"

namespace sy {

class FamilyValues;
// Stores the files of the imported model that an export needs, and their digests, in
// RUN/huggingface. These are config.json, the tokenizer, the list of tensors, and tensors that have
// fillers. Called by one rank. Throws Failure.
void save_imported_files(const std::filesystem::path& folder, const FamilyValues& values,
                         const std::filesystem::path& run_dir);

// Compares files in RUN/huggingface with their digests: those that `names` lists, or all if it is
// empty. Throws InputError if one differs. Returns a warning if an older version of the program
// imported the model without digests, "" otherwise.
std::string check_imported(const std::filesystem::path& run_dir, const std::vector<std::string>& names = {});

// Compares the tokenizer files in RUN/huggingface with their digests, as check_imported does.
// No-op for a tokenizer that is elsewhere.
void check_imported_tokenizer(const StoredTokenizer& tokenizer);

struct ExportOptions {
  std::string family;                // model_type; "": as imported, or else the first that fits
  std::string type;                  // f32, bf16 or f16; "": as imported, or else run.dtype
  Index file_bytes = 5'000'000'000;  // approximate maximum of a file, unless laid out as imported
  // step folders whose weights are averaged (average_weights), all of one model and with the
  // checkpoint among them; empty: the weights of the checkpoint
  std::vector<std::filesystem::path> average = {};
  // True: exports the adapters of LoRA alone, in PEFT's format (src/families/peft.h). False: the
  // weights include them.
  bool adapter = false;
  // Content of provenance.json; the file is left out if it is null.
  Json provenance = {};
};

// Exports a checkpoint to `folder`. Collective.
// The ranks write different tensors into the same files; the result is bitwise the same for any
// number of ranks. `folder` must not exist yet; it appears when it is complete. Returns, on rank 0,
// a note for the user if the export has no tokenizer that transformers loads. Throws InputError
// that says why no family fits.
std::string export_checkpoint(Comm& world, const CheckpointFolder& checkpoint, const TrainState& state,
                              const Config& config, const std::filesystem::path& folder, const ExportOptions& options,
                              const std::function<void(Index done, Index total)>& progress);

}  // namespace sy
