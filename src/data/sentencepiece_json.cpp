// Conversion of a SentencePiece model to a tokenizer.json of Hugging Face.
// SentencePiece's headers use containers that they do not include.
#include <unordered_map>

#include <sentencepiece_processor.h>

#include "src/data/tokenizer.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/strings.h"
#include "src/tokenizers/tokenizer_json.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

using Processor = sentencepiece::SentencePieceProcessor;

constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581: a blank within tokens

void load_model(Processor& processor, const fs::path& model) {
  if (!processor.LoadFromSerializedProto(read_file(model)).ok())
    bad_input("{} is not a SentencePiece model: copy it again", model.string());
}

std::vector<int> encoded(const Processor& processor, std::string_view text) {
  std::vector<int> ids;
  const auto status = processor.Encode({text.data(), text.size()}, &ids);
  SY_ASSERT(status.ok(), "SentencePiece: {}", status.ToString());
  return ids;
}

// Returns true if the model adds a blank at the start of a text.
bool adds_blank(const Processor& processor) {
  const std::vector<int> ids = encoded(processor, "a");
  return !ids.empty() && processor.IdToPiece(ids.front()).starts_with(space_mark);
}

Json replacement(std::string_view from, std::string_view to) {
  return {{"type", "Replace"}, {"pattern", Json{{"String", from}}}, {"content", to}};
}

Json tokenizer_json(const Processor& processor) {
  Json added = Json::array(), vocab = Json::array(), normalizers = Json::array(), decoders = Json::array();
  bool bytes = false;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const std::string& token = processor.IdToPiece(id);
    Json& entry = vocab.push_back(Json::array());
    entry.push_back(token);
    entry.push_back(static_cast<double>(processor.GetScore(id)));
    bytes |= processor.IsByte(id);
    if (processor.IsControl(id) || processor.IsUnknown(id))
      added.push_back(Json{{"id", id},
                           {"content", token},
                           {"single_word", false},
                           {"lstrip", false},
                           {"rstrip", false},
                           {"normalized", false},
                           {"special", true}});
  }
  const bool blank = adds_blank(processor);
  if (blank) normalizers.push_back(Json{{"type", "Prepend"}, {"prepend", space_mark}});
  normalizers.push_back(replacement(" ", space_mark));
  decoders.push_back(replacement(space_mark, " "));
  if (bytes) decoders.push_back(Json{{"type", "ByteFallback"}});
  decoders.push_back(Json{{"type", "Fuse"}});
  if (blank) decoders.push_back(Json{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {
      {"version", "1.0"},
      {"truncation", Json()},
      {"padding", Json()},
      {"added_tokens", added},
      {"normalizer", Json{{"type", "Sequence"}, {"normalizers", normalizers}}},
      {"pre_tokenizer", Json()},
      {"post_processor", Json()},
      {"decoder", Json{{"type", "Sequence"}, {"decoders", decoders}}},
      {"model", Json{{"type", "Unigram"}, {"unk_id", processor.unk_id()}, {"vocab", vocab}, {"byte_fallback", bytes}}}};
}

Json tokenizer_config(const Processor& processor) {
  Json config{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  for (const auto& [key, id] : {std::pair{"bos_token", processor.bos_id()},
                                {"eos_token", processor.eos_id()},
                                {"unk_token", processor.unk_id()},
                                {"pad_token", processor.pad_id()}})
    if (id >= 0) config[key] = processor.IdToPiece(id);
  return config;
}

// Returns true if a test text gets the same ids and the same decoded text. It has all tokens, for
// which a model that merges pairs chooses other ids, and characters that normalisation changes.
bool same_ids(const Processor& processor, const TokenizerJson& tokenizer) {
  constexpr std::size_t most_bytes = 1 << 16;
  std::string text;
  for (int id = 0; id < processor.GetPieceSize() && text.size() < most_bytes; ++id)
    if (!processor.IsControl(id) && !processor.IsUnknown(id) && !processor.IsByte(id)) text += processor.IdToPiece(id);
  replace_all(text, space_mark, " ");
  text += "\xEF\xBC\xA1\xEF\xAC\x81 \xC3\x84\xE2\x84\xAB  two blanks\t\n\xF0\x9F\x9A\x82\xF0\x9F\x9A\x83\r\n the end ";
  const std::vector<int> expected = encoded(processor, text);
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  std::string decoded;
  const auto status = processor.Decode(expected, &decoded);
  SY_ASSERT(status.ok(), "SentencePiece: {}", status.ToString());
  return std::equal(ids.begin(), ids.end(), expected.begin(), expected.end()) && tokenizer.decode(ids) == decoded;
}

}  // namespace

bool write_sentencepiece_as_json(const fs::path& model, const fs::path& folder) {
  Processor processor;
  load_model(processor, model);
  const fs::path file = folder / "tokenizer.json", config = folder / huggingface_config_name;
  write_file(file, json_text(tokenizer_json(processor)));
  if (same_ids(processor, TokenizerJson(file))) {
    write_file(config, json_text(tokenizer_config(processor)));
    return true;
  }
  remove_tree(file);
  return false;
}

int sentencepiece_begin_of_text(const fs::path& model) {
  Processor processor;
  load_model(processor, model);
  return processor.bos_id();
}

}  // namespace sy
