// Sources and targets in JSON lines: {"source": "...", "target": "..."}.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "src/data/text.h"
#include "src/data/tokenizer.h"

namespace sy {

// Ids of a source and of its target, without end tokens, and the bytes of both texts.
struct EncodedPair {
  std::vector<std::int32_t> source, target;
  Index bytes = 0;
};
// Returns the pairs of JSON lines, with all OpenMP threads. Throws InputError that names the first
// line that is no such object, or whose source or target has no token.
std::vector<EncodedPair> encode_pairs(const std::vector<Document>& lines, const Tokenizer& tokenizer);

}  // namespace sy
