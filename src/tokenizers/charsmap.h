// Compiled normalisation table of SentencePiece: "precompiled_charsmap".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sy {

// The map has three sections: the size of a trie in bytes, the trie, and the replacements. The trie
// of replaced texts is a double array in the layout of darts-clone (little-endian 32-bit units).
// Replacements end with a zero byte. A text's value in the trie is the offset of its replacement.
class Charsmap {
 public:
  explicit Charsmap(const std::string& base64);  // throws BadComponent if it is damaged

  // Normalises a text as `tokenizers` does. If a grapheme has fewer than six bytes and a prefix in
  // the map, its shortest such prefix gives the replacement for all of it. Otherwise each character
  // is looked up alone, also by its shortest prefix.
  std::string apply(std::string_view text) const;

 private:
  // Returns nullptr if there is no replacement.
  const char* replacement(std::string_view text) const;
  std::vector<std::uint32_t> trie_;
  std::string replacements_;
};

}  // namespace sy
