// Normalizers of tokenizer.json: change a text before it is divided.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizers/component.h"
#include "src/tokenizers/regex.h"

namespace sy {

struct NormalText {
  std::string text;
  // True if the text begins at the start of the document, and nothing before it was removed.
  // Metaspace's prepend_scheme "first" adds its mark only then.
  bool first = false;
  std::size_t most = max_output_bytes(text.size());  // limit of its size in bytes
};
using Normalizer = Step<NormalText>;
// Both throw BadComponent, JsonError. make_precompiled: the kind that is a table of SentencePiece.
Normalizer make_normalizer(const Json& component);
Normalizer make_precompiled(const Json& component);

// Returns the pattern of Replace and Split: {"String": text} or {"Regex": expression}.
Regex pattern_of(const Json& component);

// Returns the text with `content` in place of each match. Throws InputError if this makes more than
// `most` bytes, with the `before` bytes of other texts.
std::string replace_matches(std::string_view text, const std::vector<Match>& matches, std::string_view content,
                            std::size_t most, std::size_t before = 0);

}  // namespace sy
