#include <memory>

#include "src/tokenizers/normalizers.h"
#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

std::string decode_base64(std::string_view text) {
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t six = alphabet.find(c);
    if (six == alphabet.npos) bad_component("precompiled_charsmap is not base64");
    bits = bits << 6 | static_cast<std::uint32_t>(six);
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  return bytes;
}

std::uint32_t u32_at(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << 8 * i;
  return value;
}

// A unit of the trie: a node reached by a byte, or the value of its parent node.
struct TrieUnit {
  std::uint32_t bits;
  std::uint32_t offset() const { return (bits >> 10) << ((bits & 1u << 9) >> 6); }
  bool has_value() const { return bits >> 8 & 1; }
  std::uint32_t byte() const { return bits & (1u << 31 | 0xFF); }
  std::uint32_t value() const { return bits & ~(1u << 31); }
};

// Compiled normalisation table of SentencePiece: "precompiled_charsmap".
//
// The map has three sections: the size of a trie in bytes, the trie, and the replacements. The trie
// of replaced texts is a double array in the layout of darts-clone (little-endian 32-bit units).
// Replacements end with a zero byte. A text's value in the trie is the offset of its replacement.
class Charsmap {
 public:
  explicit Charsmap(const std::string& base64) {
    const std::string bytes = decode_base64(base64);
    const std::size_t size = bytes.size() < 4 ? 0 : u32_at(bytes, 0);
    if (size == 0 || size % 4 != 0 || size > bytes.size() - 4 || bytes.back() != '\0')
      bad_component("precompiled_charsmap is damaged");
    for (std::size_t at = 4; at < 4 + size; at += 4) trie_.push_back({u32_at(bytes, at)});
    replacements_ = bytes.substr(4 + size);
    if (invalid_utf8(replacements_)) bad_component("precompiled_charsmap is damaged");
  }

  // Normalises a text as `tokenizers` does. If a grapheme has fewer than six bytes and a prefix in
  // the map, its shortest such prefix gives the replacement for all of it. Otherwise each character
  // is looked up alone, also by its shortest prefix. Throws InputError if the result has more than
  // `most` bytes.
  std::string apply(std::string_view text, std::size_t most) const {
    std::string result;
    std::size_t begin = 0;
    for (const std::size_t end : grapheme_ends(text)) {
      const std::string_view grapheme = text.substr(begin, end - begin);
      begin = end;
      check_output_size(result.size(), most);
      const char* whole = grapheme.size() < 6 ? replacement(grapheme) : nullptr;
      if (whole) {
        result += whole;
        continue;
      }
      for_each_character(grapheme, [&](char32_t, std::size_t, std::string_view character) {
        if (const char* instead = replacement(character))
          result += instead;
        else
          result += character;
        check_output_size(result.size(), most);
      });
    }
    check_output_size(result.size(), most);
    return result;
  }

 private:
  // Returns nullptr if there is no replacement. A replacement begins with a whole character.
  const char* replacement(std::string_view text) const {
    std::size_t node = trie_[0].offset();
    for (const char c : text) {
      const std::uint32_t byte = static_cast<unsigned char>(c);
      node ^= byte;
      if (node >= trie_.size() || trie_[node].byte() != byte) return nullptr;
      const TrieUnit unit = trie_[node];
      node ^= unit.offset();
      if (!unit.has_value()) continue;
      const std::size_t at = node < trie_.size() ? trie_[node].value() : replacements_.size();
      const bool begins = at < replacements_.size() && (static_cast<unsigned char>(replacements_[at]) & 0xC0) != 0x80;
      return begins ? replacements_.data() + at : nullptr;
    }
    return nullptr;
  }

  std::vector<TrieUnit> trie_;
  std::string replacements_;
};

}  // namespace

Normalizer make_precompiled(const Json& component) {
  const auto map = std::make_shared<const Charsmap>(value_of<std::string>(component, "precompiled_charsmap"));
  return [map](NormalText& x) { x.text = map->apply(x.text, x.most); };
}

}  // namespace sy
