#include "src/families/export_tokenizer.h"

#include "src/data/run_tokenizer.h"
#include "src/system/files.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

constexpr const char* bos_key = "bos_token_id";
constexpr const char* eos_key = "eos_token_id";

// Writes a tokenizer_config.json with the end-of-text token and a class, unless it has a class.
// Without a class, transformers guesses one from config.json. model: a valid tokenizer.json.
void complete_tokenizer_config(const fs::path& model, const fs::path& folder) {
  Json config = Json::parse(huggingface_config(model));
  if (config.contains("tokenizer_class")) return;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  write_file(folder / huggingface_config_name, json_text(config));
}

}  // namespace

std::string export_tokenizer(const fs::path& step_dir, const TrainState& state, Json& config, const fs::path& folder) {
  const auto tokenizer = find_stored_tokenizer(step_dir, tokenizers_of(step_dir, state));
  if (!tokenizer) {
    const std::string other = other_tokenizer(step_dir, state);
    return fmt::format("{}: the export has none, and config.json says no bos_token_id and eos_token_id",
                       other.empty() ? "the run keeps no tokenizer" : other);
  }
  const int end = tokenizer->kind->open(tokenizer->model)->end_of_text();
  std::string note;
  int begin = -1;
  if (tokenizer->kind->name == "huggingface") {
    copy_tokenizer_files(tokenizer->model.parent_path(), folder);
    complete_tokenizer_config(tokenizer->model, folder);
    begin = huggingface_begin_of_text(tokenizer->model);
  } else if (tokenizer->kind->name == "sentencepiece") {
    copy_tokenizer_files(tokenizer->model.parent_path(), folder);
    begin = sentencepiece_begin_of_text(tokenizer->model);
    if (!write_sentencepiece_as_json(tokenizer->model, folder))
      note =
          "transformers has no tokenizer with the ids of this SentencePiece model: tokenizer.model is exported alone";
  } else {
    note = "transformers has no tokenizer of bytes: the export has none; ids 0 to 255 are bytes, and 256 ends a text";
  }
  // If the keys are absent, transformers uses the ids of the family's first model.
  if (!config.contains(bos_key)) config[bos_key] = begin < 0 ? Json() : Json(begin);
  if (!config.contains(eos_key)) config[eos_key] = end;
  const fs::path generation = folder / "generation_config.json";
  if (!file_exists(generation)) {
    Json ids = Json::object();
    for (const char* key : {bos_key, eos_key})
      if (!config.at(key).is_null()) ids[key] = config.at(key);
    write_file(generation, json_text(ids));
  }
  return note;
}

}  // namespace sy
