// "decoder" of tokenizer.json: tokens become text again.
#pragma once

#include <string>
#include <vector>

#include "src/tokenizers/component.h"

namespace sy {

using Decoder = Step<std::vector<std::string>>;  // the text is all of them, one after the other
// Throws BadComponent, JsonError. Of null: blanks between the tokens. Unlike in `tokenizers`, bytes that are no UTF-8 stay what they
// are: a text that goes on may complete them.
Decoder make_decoder(const Json& component);

}  // namespace sy
