// Sources and targets in JSON lines: {"source": "...", "target": "..."}.
#pragma once

#include <vector>

#include "src/data/text.h"
#include "src/data/tokenizer.h"

namespace sy {

// Ids of a source and of its target, without end tokens, and the number of bytes of both texts.
struct EncodedPair {
  std::vector<std::int32_t> source, target;
  Index bytes = 0;
};
// Returns the pairs of JSON lines. Encodes with all OpenMP threads (encode_texts).
// Throws InputError that names the first line that is no such object or has an empty text. If there
// is none, it names the first line with a text without tokens.
std::vector<EncodedPair> encode_pairs(const std::vector<Document>& lines, const Tokenizer& tokenizer);

}  // namespace sy
