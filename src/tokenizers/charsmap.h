// A SentencePiece normalisation, compiled into a table: "precompiled_charsmap".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sy {

// The map begins with the size in bytes of a double-array trie of what is replaced (the layout of darts-clone, little-endian
// 32-bit units), which follows; the rest are the replacements, each ended by a zero byte, and a word's value in the trie is
// where its own begins.
class Charsmap {
 public:
  explicit Charsmap(const std::string& base64);  // throws BadComponent where it is none

  // As `tokenizers` applies it: of a grapheme of fewer than six bytes the shortest prefix in the map decides about all of it;
  // otherwise each character is looked up alone, by its shortest prefix again.
  std::string apply(std::string_view text) const;

 private:
  // nullptr: it stays.
  const char* replacement(std::string_view part) const;
  std::vector<std::uint32_t> trie_;
  std::string replacements_;
};

}  // namespace sy
