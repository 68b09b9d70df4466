// Identity of the tokenizer of a data set or a model, and the copy in a run folder.
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
  std::string kind;                // of a TokenizerKind; "none": dataset.ini has the digest alone
  std::string sha256;              // tokenizer_sha256()
  std::string unicode_versions{};  // of the libraries that made the ids; empty if not known
};
// Tokenizers of a model: several files may hold the same one. Empty if they are not known.
using TokenizerIdentities = std::vector<TokenizerIdentity>;

// "huggingface SHA256, sentencepiece SHA256", as in TrainState::tokenizer.
std::string to_text(const TokenizerIdentities& tokenizers);
TokenizerIdentities parse_tokenizers(const std::string& text);

TokenizerIdentities tokenizers_of(const DatasetDescription& description);
// Returns the tokenizers of the model files in a folder.
TokenizerIdentities tokenizers_in(const std::filesystem::path& folder);
// Throws InputError if one of tokenizer_files is in the folder and is no regular file.
void check_tokenizer_files(const std::filesystem::path& folder);
// Describes the tokenizer of RUN/tokenizer and the checkpoint's own, if they differ. Empty if they
// do not, or if one is unknown.
std::string other_tokenizer(const std::filesystem::path& step_dir, const TrainState& state);
// Returns the tokenizers that a checkpoint was trained with.
// If an imported checkpoint does not name them, returns those of RUN/huggingface.
TokenizerIdentities tokenizers_of(const std::filesystem::path& step_dir, const TrainState& state);

// Folder RUN/huggingface: files of an imported model, so that an export writes them again.
// - config.json and the tokenizer are copies
// - files.json lists each file's tensors and their types
// - fillers/model.safetensors holds tensors with elements that no parameter covers
// - SHA256SUMS has the digests of these files, for `sha256sum -c`
constexpr const char* huggingface_folder_name = "huggingface";

// A tokenizer that `prepare` can use again.
// It is built in, or a file of RUN/tokenizer or RUN/huggingface.
struct StoredTokenizer {
  const TokenizerKind* kind;
  std::filesystem::path model;  // empty if the kind has no model
  std::string option() const;   // value of prepare's --tokenizer: "hf:RUN/tokenizer"
};
// Finds a tokenizer that is equal to one of `tokenizers`, in the order of tokenizer_kinds().
// Looks at the built-in tokenizers and at the files of the checkpoint's run. Empty if none matches.
std::optional<StoredTokenizer> find_stored_tokenizer(const std::filesystem::path& step_dir,
                                                     const TokenizerIdentities& tokenizers);

// Folder RUN/tokenizer: a model file, named as in a data set, and its companion files.
constexpr const char* tokenizer_folder_name = "tokenizer";
// Copies a data set's tokenizer to RUN/tokenizer. No-op if it has no model file. Throws Failure.
void store_tokenizer(const DatasetDescription& description, const std::filesystem::path& run_dir);
// Copies a data set's chat template to RUN/tokenizer. No-op if it has none. Throws Failure.
void store_chat_template(const DatasetDescription& description, const std::filesystem::path& run_dir);
// Copies another run's tokenizer to RUN/tokenizer: the files that tokenizer_files lists.
// No-op if the tokenizer has no model file, or if it lies in that folder already.
void store_tokenizer(const StoredTokenizer& tokenizer, const std::filesystem::path& run_dir);
// Files that Hugging Face's programs store beside the tensors of a model.
inline constexpr const char* tokenizer_files[] = {
    "tokenizer.json",          "tokenizer_config.json", "tokenizer.model",        "vocab.json",         "merges.txt",
    "special_tokens_map.json", "added_tokens.json",     "generation_config.json", "chat_template.jinja"};
// Copies the existing files of tokenizer_files from one folder to another. Skips links.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

// Compares the `versions` of Unicode that made the ids of `what` with those of this program.
// Returns a warning if they differ; "" if they are equal, or not known (empty).
std::string check_unicode(const std::string& what, const std::string& versions);

// Compares the tokenizer of a data set with that of a checkpoint; one common identity is enough.
// Returns "" if they are equal.
// Returns a warning if one is not known, if they differ and `force` is true, or if only their
// versions of Unicode differ.
// Throws InputError if they differ and `force` is false. force_advice: "set data.force = true".
std::string check_tokenizer(const std::filesystem::path& data, const TokenizerIdentities& of_data,
                            const std::filesystem::path& step_dir, const TrainState& state, bool force,
                            const std::string& force_advice);
// Overload for an open data set. Returns "" if the checkpoint was trained on this data set.
std::string check_tokenizer(const Dataset& dataset, const std::filesystem::path& step_dir, const TrainState& state,
                            bool force, const std::string& force_advice);

}  // namespace sy
