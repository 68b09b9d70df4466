// Which tokenizer the ids of a data set or a model are of, and the copy of it that a run folder
// keeps.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/data/dataset.h"
#include "src/data/tokenizer.h"
#include "src/io/checkpoint.h"

namespace sy {

// Tokenizers with equal digests give equal ids.
struct TokenizerIdentity {
  std::string kind;    // of a TokenizerKind, or "none" if dataset.ini names the digest alone
  std::string sha256;  // tokenizer_sha256()
};
// A model may have several files of one tokenizer, such as tokenizer.json and tokenizer.model.
// Empty: not known.
using TokenizerIdentities = std::vector<TokenizerIdentity>;

// "huggingface SHA256, sentencepiece SHA256", as in TrainState::tokenizer.
std::string to_text(const TokenizerIdentities& tokenizers);
TokenizerIdentities parse_tokenizers(const std::string& text);

TokenizerIdentities tokenizers_of(const Dataset& dataset);
TokenizerIdentities tokenizers_of(const DatasetDescription& description);
// The tokenizers that the model files in a folder are of.
TokenizerIdentities tokenizers_in(const std::filesystem::path& folder);
// The tokenizers that a checkpoint was trained with. Of an import from before checkpoints knew
// them: those of its files.
TokenizerIdentities tokenizers_of(const std::filesystem::path& step_dir, const TrainState& state);

// The files of an imported model that RUN/huggingface keeps, so that an export gives the same files
// again: config.json and the tokenizer as they were; files.json with the name and type of each file's
// tensors; fillers/model.safetensors with the tensors that have elements which no parameter covers;
// SHA256SUMS with the digests of these files, which `sha256sum -c` reads.
constexpr const char* kept_folder = "huggingface";

// A tokenizer that a run folder keeps, in RUN/tokenizer or RUN/huggingface.
struct KeptTokenizer {
  const TokenizerKind* kind;
  std::filesystem::path model;  // empty if the kind has no model
  std::string option() const;   // of `prepare`: "hf:RUN/tokenizer"
};
// The first of these tokenizers that the checkpoint's run keeps.
std::optional<KeptTokenizer> kept_tokenizer(const std::filesystem::path& step_dir,
                                            const TokenizerIdentities& tokenizers);

// Of a run: the model file, under the name that its kind has in a data set, and the files that
// belong to it.
constexpr const char* tokenizer_folder_name = "tokenizer";
// Copies a data set's tokenizer there; no-op if it has no model file. Throws Failure.
void keep_tokenizer(const DatasetDescription& description, const std::filesystem::path& run_dir);
// Copies another run's tokenizer there, with all files that came with it.
void keep_tokenizer(const KeptTokenizer& tokenizer, const std::filesystem::path& run_dir);
// What Hugging Face's programs keep beside the tensors of a model.
inline constexpr const char* tokenizer_files[] = {
    "tokenizer.json",          "tokenizer_config.json", "tokenizer.model",        "vocab.json",         "merges.txt",
    "special_tokens_map.json", "added_tokens.json",     "generation_config.json", "chat_template.jinja"};
// Copies the files of a tokenizer of Hugging Face, as they are, from one folder of a run to another.
// Links are not followed.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

// Compares the tokenizer of a data set with the one that a checkpoint was trained with. Returns a
// warning if they differ and `force` is true, or if one of them is not known; empty if they are the
// same. Throws InputError if they differ and `force` is false; `force_advice` is "set data.force =
// true".
std::string check_tokenizer(const std::filesystem::path& data, const TokenizerIdentities& of_data,
                            const std::filesystem::path& step_dir, const TrainState& state, bool force,
                            const std::string& force_advice);
// The same. The data that the checkpoint was trained on have its tokenizer, even if neither says
// which.
std::string check_tokenizer(const Dataset& dataset, const std::filesystem::path& step_dir, const TrainState& state,
                            bool force, const std::string& force_advice);

}  // namespace sy
