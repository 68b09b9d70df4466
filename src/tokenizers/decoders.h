// Decoders of tokenizer.json: convert tokens to text.
#pragma once

#include <string>
#include <vector>

#include "src/tokenizers/component.h"

namespace sy {

struct DecodedTokens {
  std::vector<std::string> tokens;  // their concatenation is the text
  std::size_t most = 0;             // limit of their total size in bytes
};
using Decoder = Step<DecodedTokens>;
// Throws BadComponent, JsonError. null: joins the tokens with blanks. Unlike in `tokenizers`, bytes
// that are not UTF-8 stay, because later tokens may complete them.
Decoder make_decoder(const Json& component);

}  // namespace sy
