// Adapter of Hugging Face tokenizers to the class Tokenizer.
#include "src/data/tokenizer.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/tokenizers/tokenizer_json.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

// Names of special tokens that end a text. Names that have no other use come first.
constexpr const char* names_of_end[] = {
    "<|endoftext|>", "<|end_of_text|>", "</s>",       "<eos>",   "<EOS>", "<｜end▁of▁sentence｜>",
    "<|im_end|>",    "[EOS]",           "<|return|>", "<|end|>", "[SEP]"};

fs::path config_beside(const fs::path& file) {
  return file.parent_path() / huggingface_config_name;
}

// Returns "eos_token" or "bos_token" of the tokenizer_config.json beside a file, which is a text or
// an added token. Empty if absent.
std::string special_token(const fs::path& file, const char* key) {
  const fs::path config = config_beside(file);
  if (!file_exists(config)) return "";
  try {
    const Json json = Json::parse(read_file(config));
    const Json* token = json.find(key);
    if (!token || token->is_null()) return "";
    return token->is_object() ? token->at("content").get<std::string>() : token->get<std::string>();
  } catch (const JsonError& e) {
    bad_input("{}: {}: {}", config.string(), key, e.what());
  }
}

std::string end_token(const TokenizerJson& tokenizer, const fs::path& file) {
  if (std::string token = special_token(file, "eos_token"); !token.empty()) {
    if (tokenizer.find(token) < 0)
      bad_input("{}: the eos_token '{}' is no token of {}: correct it", config_beside(file).string(), token,
                file.string());
    return token;
  }
  for (const char* name : names_of_end)
    if (const std::int32_t id = tokenizer.find(name); id >= 0 && tokenizer.is_special(id)) return name;
  bad_input(
      "{} does not say which token ends a text: write {{\"eos_token\": \"NAME\"}}, with one of its tokens, into {} beside it",
      file.string(), huggingface_config_name);
}

class HuggingFaceTokenizer : public Tokenizer {
 public:
  explicit HuggingFaceTokenizer(const fs::path& file)
      : tokenizer_(file), end_of_text_(tokenizer_.find(end_token(tokenizer_, file))) {
    tokenizer_.encode("a", one_);
    keeps_text_ = bytes_add_up(*this);
  }

  Index vocab() const override { return tokenizer_.vocab(); }
  int end_of_text() const override { return end_of_text_; }
  int mask_token() const override {
    for (const std::string_view name : mask_names)
      if (const std::int32_t id = tokenizer_.find(name); id >= 0 && tokenizer_.is_special(id)) return id;
    return -1;
  }
  std::int32_t find(std::string_view name) const override { return tokenizer_.find(name); }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override { tokenizer_.encode(text, ids); }
  std::string decode(const std::vector<std::int32_t>& ids) const override { return tokenizer_.decode(ids); }
  Index text_bytes(std::int32_t id) const override {
    if (!keeps_text_ || id < 0 || id >= vocab() || id == tokenizer_.unknown_id()) return -1;
    // Measured after another token, since decoders may treat the first token differently.
    std::vector<std::int32_t> longer = one_;
    longer.push_back(id);
    return static_cast<Index>(decode(longer).size()) - static_cast<Index>(decode(one_).size());
  }

 private:
  TokenizerJson tokenizer_;
  std::int32_t end_of_text_;
  std::vector<std::int32_t> one_;  // ids of "a"
  bool keeps_text_ = true;         // the tokens of a text are its bytes
};

}  // namespace

std::unique_ptr<Tokenizer> load_huggingface(const fs::path& file) {
  return std::make_unique<HuggingFaceTokenizer>(file);
}

std::string huggingface_config(const fs::path& file) {
  const fs::path config = config_beside(file);
  if (file_exists(config)) return read_file(config);
  return json_text(Json{{"eos_token", end_token(TokenizerJson(file), file)}});
}

int huggingface_begin_of_text(const fs::path& file) {
  const std::string token = special_token(file, "bos_token");
  return token.empty() ? -1 : TokenizerJson(file).find(token);
}

}  // namespace sy
