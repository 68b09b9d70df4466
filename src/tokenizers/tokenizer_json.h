// Tokenizer of a tokenizer.json, the file of Hugging Face's `tokenizers`, with the same results.
//
// A text is divided at the added tokens. The text between them is normalised and divided into
// pre-tokens. The model encodes each pre-token. Truncation, padding and the post_processor are
// ignored: a text is encoded whole, without tokens around it.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizers/added_tokens.h"
#include "src/tokenizers/decoders.h"
#include "src/tokenizers/models.h"
#include "src/tokenizers/normalizers.h"
#include "src/tokenizers/pre_tokenizers.h"

namespace sy {

class TokenizerJson {
 public:
  // Throws InputError, naming the file, if it is no tokenizer.json or has an unsupported component.
  explicit TokenizerJson(const std::filesystem::path& file);
  ~TokenizerJson();

  std::int32_t vocab() const { return vocab_; }  // ids are below; some may have no token
  // Appends the ids of a text. Invalid UTF-8 is read as U+FFFD. Threads may call it concurrently.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const;
  // Returns the text of ids in [0, vocab), without special tokens.
  std::string decode(const std::vector<std::int32_t>& ids) const;
  std::int32_t find(std::string_view token) const;  // -1 if not found
  bool is_special(std::int32_t id) const;
  std::int32_t unknown_id() const { return model_->unknown_id(); }  // -1 if there is none
  // The added tokens, in the file's order.
  const AddedTokens& added() const { return added_; }

 private:
  class EncodingCache;  // of pre-tokens
  struct CacheLease;
  void encode_text(std::string_view text, bool first, EncodingCache& cache, std::vector<std::int32_t>& ids) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<Model> model_;
  AddedTokens added_;
  Decoder decoder_;
  std::int32_t vocab_ = 0;
  mutable std::mutex mutex_;                                         // guards idle_caches_
  mutable std::vector<std::unique_ptr<EncodingCache>> idle_caches_;  // one per encoding thread
};

}  // namespace sy
