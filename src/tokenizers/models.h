// "model" of tokenizer.json: pieces of text become ids.
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

// Tokens and their ids, between which there may be gaps.
class Vocabulary {
 public:
  // An empty token is none. Throws BadComponent where an id or a token is there twice, or ids are so far apart that most are none.
  explicit Vocabulary(std::vector<std::pair<std::string, std::int64_t>>&& tokens);
  Vocabulary(const Vocabulary&) = delete;
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }  // ids are below this
  std::int32_t find(std::string_view token) const;                                 // -1: it is none
  // Empty where no token has the id.
  const std::string& token(std::int32_t id) const { return tokens_[static_cast<std::size_t>(id)]; }
  // The ids of "<0x00>" to "<0xFF>", which stand for bytes; -1 for those that are not there.
  std::vector<std::int32_t> bytes() const;

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  // of tokens_
};

class Model {
 public:
  explicit Model(std::unique_ptr<const Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~Model() = default;
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  virtual std::int32_t unknown_id() const = 0;  // -1: there is none
  // Appends the ids of a piece, which is not empty. Throws InputError where a character has no token, and there is none for
  // such. Threads may encode at the same time.
  virtual void encode(std::string_view piece, std::vector<std::int32_t>& ids) const = 0;

 private:
  std::unique_ptr<const Vocabulary> vocabulary_;
};

// Throws BadComponent, JsonError.
std::unique_ptr<Model> make_model(const Json& component);
std::unique_ptr<Model> make_bpe(const Json& component);
std::unique_ptr<Model> make_unigram(const Json& component);

}  // namespace sy
