// GPT-2's alphabet of byte characters. Printable characters of Latin-1 stand for themselves; the
// other bytes, in order, map to U+0100 and the following ones.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/tokenizers/unicode.h"

namespace sy {

constexpr std::array<char32_t, 256> bytes_alphabet = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}();

// Appends the characters of `bytes`.
inline void bytes_to_characters(std::string_view bytes, std::string& characters) {
  for (const char byte : bytes) append_character(characters, bytes_alphabet[static_cast<unsigned char>(byte)]);
}

// Returns the bytes of `characters`.
// Returns a text with characters outside the alphabet unchanged.
inline std::string characters_to_bytes(std::string_view characters) {
  static const std::array<std::int16_t, 0x144> byte_of = [] {
    std::array<std::int16_t, 0x144> bytes;
    bytes.fill(-1);
    for (std::size_t byte = 0; byte < 256; ++byte) bytes[bytes_alphabet[byte]] = static_cast<std::int16_t>(byte);
    return bytes;
  }();
  std::string bytes;
  bool all = true;
  for_each_character(characters, [&](char32_t c, std::size_t, std::string_view) {
    all = all && c < byte_of.size() && byte_of[c] >= 0;
    if (all) bytes += static_cast<char>(byte_of[c]);
  });
  return all ? bytes : std::string(characters);
}

}  // namespace sy
