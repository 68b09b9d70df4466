// tokenizer.json, the file of Hugging Face's `tokenizers`: what it says, done as that library does it.
//
// A text is divided by the added tokens; the rest is normalised, divided into pieces, and each piece encoded by the model.
// Truncation, padding and the post_processor are left out: a text is encoded whole, and nothing is put around it.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/tokenizers/added_tokens.h"
#include "src/tokenizers/decoders.h"
#include "src/tokenizers/models.h"
#include "src/tokenizers/normalizers.h"
#include "src/tokenizers/pre_tokenizers.h"

namespace sy {

class TokenizerJson {
 public:
  // Throws InputError, naming the file, where it is no tokenizer.json, or has something that is not supported.
  explicit TokenizerJson(const std::filesystem::path& file);
  ~TokenizerJson();
  TokenizerJson(const TokenizerJson&) = delete;

  std::int32_t vocab() const { return vocab_; }  // ids are below this; some may be no token's
  // Appends. Bytes that are no UTF-8 count as U+FFFD. Threads may encode at the same time.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const;
  // Without special tokens. Ids must be in [0, vocab).
  std::string decode(const std::vector<std::int32_t>& ids) const;
  std::int32_t find(std::string_view token) const;  // -1: it is none
  bool is_special(std::int32_t id) const;
  std::int32_t unknown_id() const { return model_->unknown_id(); }  // -1: there is none
  // The special tokens, in the file's order.
  const AddedTokens& added() const { return added_; }

 private:
  class Words;  // pieces whose ids are known
  struct Borrowed;
  void encode_text(std::string_view text, bool first, Words& words, std::vector<std::int32_t>& ids) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<Model> model_;
  AddedTokens added_;
  Decoder decoder_;
  std::int32_t vocab_ = 0;
  mutable std::mutex mutex_;                                // of what follows
  mutable std::vector<std::unique_ptr<Words>> idle_words_;  // one for each thread that encodes
};

}  // namespace sy
