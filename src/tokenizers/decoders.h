// "decoder" of tokenizer.json: tokens become text again.
#pragma once

#include <string>
#include <vector>

#include "src/tokenizers/component.h"

namespace sy {

struct DecodedTokens {
  std::vector<std::string> tokens;  // the text is all of them, one after the other
  std::size_t most = 0;             // bytes that they may become
};
using Decoder = Step<DecodedTokens>;
// Throws BadComponent, JsonError. Of null: blanks between the tokens. Unlike in `tokenizers`, bytes that are no UTF-8 stay what they
// are: a text that goes on may complete them.
Decoder make_decoder(const Json& component);

}  // namespace sy
