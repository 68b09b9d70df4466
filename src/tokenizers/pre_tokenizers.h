// Pre-tokenizers of tokenizer.json: divide a normalised text into pre-tokens, which the model
// encodes one by one.
#pragma once

#include <string>
#include <vector>

#include "src/tokenizers/component.h"

namespace sy {

struct PreTokenizedText {
  struct PreToken {
    std::size_t begin, end;  // bytes of `text`; not empty
    bool first;              // NormalText::first applies to it
  };
  std::string text;
  std::vector<PreToken> pre_tokens;  // in order
  std::size_t most = 0;              // limit of the size of `text` in bytes
};
using PreTokenizer = Step<PreTokenizedText>;
PreTokenizer make_pre_tokenizer(const Json& component);  // throws BadComponent, JsonError

}  // namespace sy
