// "pre_tokenizer" of tokenizer.json: a normalised text becomes pieces, each of which the model encodes alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizers/component.h"

namespace sy {

struct Pieces {
  struct Piece {
    std::size_t begin, end;  // bytes of `text`; none is empty
    bool first;              // of its document (NormalText::first)
  };
  std::string text;
  std::vector<Piece> pieces;  // in order
  std::size_t most = 0;       // bytes that the text may become
};
using PreTokenizer = Step<Pieces>;
PreTokenizer make_pre_tokenizer(const Json& component);  // throws BadComponent, JsonError

}  // namespace sy
