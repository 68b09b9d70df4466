// "normalizer" of tokenizer.json: what becomes of a text before it is divided.
#pragma once

#include <string>

#include "src/tokenizers/component.h"
#include "src/tokenizers/regex.h"

namespace sy {

struct NormalText {
  std::string text;
  // It begins where the document does, and nothing before was taken away: a blank in front that only the document's first
  // word gets (Metaspace's prepend_scheme "first") goes here.
  bool first = false;
  std::size_t most = longest_made_of(text.size());  // bytes that it may become
};
using Normalizer = Step<NormalText>;
Normalizer make_normalizer(const Json& component);  // throws BadComponent, JsonError

// {"String": text} or {"Regex": expression}, as Replace and Split have it.
Regex pattern_of(const Json& component);

}  // namespace sy
