// The tokenizer of an exported model: the files that Hugging Face's programs load, and the ids that
// end and begin a text.
#pragma once

#include <filesystem>
#include <string>

#include "src/io/checkpoint.h"
#include "src/text/json.h"

namespace sy {

// Writes the tokenizer that the checkpoint's run keeps, and generation_config.json, into `folder`.
// Sets bos_token_id and eos_token_id of `config` (config.json) unless it has them. Returns a note
// for the user if the folder gets no tokenizer that transformers loads, empty otherwise. Throws
// InputError for a damaged tokenizer, Failure if the disk fails.
std::string export_tokenizer(const std::filesystem::path& step_dir, const TrainState& state, Json& config,
                             const std::filesystem::path& folder);

}  // namespace sy
