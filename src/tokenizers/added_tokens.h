// Added tokens of tokenizer.json: texts that become one token. They are matched before all other
// steps, or after normalisation.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizers/models.h"
#include "src/tokenizers/normalizers.h"
#include "src/tokenizers/trie.h"

namespace sy {

struct AddedToken {
  std::string content;
  std::int32_t id = -1;
  bool single_word = false;             // no match next to a word character
  bool lstrip = false, rstrip = false;  // the match includes all white space before, after
  bool normalized = false;              // matched in normalised text, by its normalised content
  bool special = false;                 // not decoded to text
  std::string pattern;                  // the text to match
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // Tokens that the model's vocabulary has must have the same ids there.
  // Throws BadComponent, JsonError.
  AddedTokens(const Json& list, const Vocabulary& vocabulary, const Normalizer& normalizer);
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* find(std::int32_t id) const;      // nullptr if no token has the id
  std::int32_t find(std::string_view content) const;  // the id; -1 if there is none
  std::int32_t end() const;                           // all ids are below

  struct Segment {
    std::size_t begin, end;
    std::int32_t id;  // id of the token; -1 if it is other text
  };
  // Divides a text into tokens and the text between them, which is not empty. Among tokens that
  // begin at the same position, the longest is taken.
  std::vector<Segment> split(std::string_view text, bool normalized) const;

 private:
  std::vector<AddedToken> tokens_;
  Trie contents_;  // -> indices in tokens_
  // Patterns of the tokens with normalized = false, and of those with normalized = true.
  std::array<Trie, 2> matches_;
  FlatMap by_id_;
};

}  // namespace sy
