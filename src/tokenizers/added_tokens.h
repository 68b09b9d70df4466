// "added_tokens" of tokenizer.json: texts that become a token as a whole, before anything else is done, or after normalisation.
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
  bool single_word = false;             // not within letters
  bool lstrip = false, rstrip = false;  // with all white space before, behind
  bool normalized = false;              // found in normalised text, where it is itself normalised
  bool special = false;                 // no text
  std::string pattern;                  // what is looked for
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // The ids of those that the model's vocabulary has must be its own. Throws BadComponent, JsonError.
  AddedTokens(const Json& list, const Vocabulary& vocabulary, const Normalizer& normalizer);
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* find(std::int32_t id) const;      // nullptr: none has it
  std::int32_t find(std::string_view content) const;  // the id, -1: none has it
  std::int32_t end() const;                           // all ids are below this

  struct Part {
    std::size_t begin, end;
    std::int32_t id;  // of the token that it is, or -1
  };
  // The parts of a text, none of those without an id empty. Where tokens begin at the same place the longest is taken.
  std::vector<Part> split(std::string_view text, bool normalized) const;

 private:
  std::vector<AddedToken> tokens_;
  Trie contents_;                // -> places in tokens_
  std::array<Trie, 2> matches_;  // of those that are not normalised, and of those that are, by their patterns
  FlatMap by_id_;
};

}  // namespace sy
