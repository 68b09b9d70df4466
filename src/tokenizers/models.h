// Models of tokenizer.json: convert pre-tokens to ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/tokenizers/component.h"

namespace sy {

// Tokens and their ids, which may have gaps.
class Vocabulary {
 public:
  // Ignores empty tokens. Throws BadComponent if an id or a token occurs twice, or if most ids up
  // to the largest have no token.
  explicit Vocabulary(std::vector<std::pair<std::string, std::int64_t>>&& tokens);
  Vocabulary(const Vocabulary&) = delete;
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }  // ids are below
  // Returns -1 if the token is not found.
  std::int32_t find(std::string_view token) const;
  // Empty if no token has the id.
  const std::string& token(std::int32_t id) const { return tokens_[static_cast<std::size_t>(id)]; }
  // Returns the ids of "<0x00>" to "<0xFF>", which stand for bytes; -1 if there is no such token.
  std::vector<std::int32_t> bytes() const;

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  // keys refer to tokens_
};

// Appends the tokens of the bytes of `text` and returns true, unless one of them has none.
// of_bytes: Vocabulary::bytes(), or empty if the model has no byte fallback
bool append_bytes(std::string_view text, const std::vector<std::int32_t>& of_bytes, std::vector<std::int32_t>& ids);

// Returns the vocabulary of a model whose "vocab" has an id for each token.
std::unique_ptr<const Vocabulary> vocabulary_of(const Json& component);

class Model {
 public:
  explicit Model(std::unique_ptr<const Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~Model() = default;
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  std::int32_t unknown_id() const { return unknown_id_; }  // -1 if there is none
  // Appends the ids of a pre-token, which must not be empty. Throws InputError if a character has
  // no token and the model has no unknown token. Threads may call it concurrently.
  virtual void encode(std::string_view pre_token, std::vector<std::int32_t>& ids) const = 0;

 protected:
  std::int32_t unknown_id_ = -1;

 private:
  std::unique_ptr<const Vocabulary> vocabulary_;
};

// All throw BadComponent, JsonError.
std::unique_ptr<Model> make_model(const Json& component);
std::unique_ptr<Model> make_bpe(const Json& component);
std::unique_ptr<Model> make_unigram(const Json& component);
std::unique_ptr<Model> make_wordpiece(const Json& component);

}  // namespace sy
