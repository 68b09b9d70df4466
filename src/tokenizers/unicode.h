// Characters: UTF-8, the classes that tokenizers ask for, and Unicode's normal forms. ICU knows them.
//
// Texts are well-formed UTF-8 unless something else is said.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sy {

struct Character {
  char32_t code;
  std::size_t size;  // bytes
};
Character character_at(std::string_view text, std::size_t at);
void append_character(std::string& text, char32_t code);

// Calls visit(code, where it begins, its bytes) for each character.
template <class Visit>
void for_each_character(std::string_view text, const Visit& visit) {
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    visit(c.code, at, text.substr(at, c.size));
    at += c.size;
  }
}

// Any bytes; what is no UTF-8 becomes U+FFFD, one for each maximal part (Unicode 15, section 3.9).
std::string as_utf8(std::string_view bytes);

bool is_white_space(char32_t c);  // White_Space
bool is_numeric(char32_t c);      // N
bool is_punctuation(char32_t c);  // P, or ASCII's
bool is_mark(char32_t c);         // M
bool is_word(char32_t c);         // Alphabetic, M, Nd, Pc or Join_Control: \w of UTS #18

enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalized(std::string_view text, NormalForm form);
// Each character by itself, whatever stands beside it.
std::string lower_case(std::string_view text);

// Where each extended grapheme cluster (UAX #29) ends.
std::vector<std::size_t> ends_of_graphemes(std::string_view text);

}  // namespace sy
