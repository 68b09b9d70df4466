// Functions on characters: UTF-8, the classes that tokenizers use, and normal forms. Based on ICU.
//
// Texts are well-formed UTF-8, except in as_utf8 and invalid_utf8.
//
// Token ids must not depend on the Unicode version of the system's libraries, and must be those of
// Hugging Face's `tokenizers`. Its tables are of several versions: Unicode 16 in expressions and
// Whitespace, 17 in Digits and Lowercase, 9 in NFC to NFKD and StripAccents, and 8 in Punctuation
// and Bert's normalizer. Each function here follows the version of its component.
// newer_characters.h has the characters that Debian's PCRE2 and ICU lack. Three differences remain.
// System libraries beyond Unicode 16 know characters that `tokenizers` does not. \p{Script} of a
// script that is newer than PCRE2 is an error. Grapheme clusters (Precompiled) are those of ICU.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/types.h"

namespace sy {

struct Character {
  char32_t code;
  std::size_t size;  // bytes
};
Character character_at(std::string_view text, std::size_t at);
// Returns the last character before `at`, which must not be 0.
Character character_before(std::string_view text, std::size_t at);
void append_character(std::string& text, char32_t code);

// Calls visit(code, offset in bytes, its bytes) for each character.
template <class Visit>
void for_each_character(std::string_view text, const Visit& visit) {
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    visit(c.code, at, text.substr(at, c.size));
    at += c.size;
  }
}

// Converts any bytes to UTF-8. Each maximal subpart of an ill-formed sequence becomes U+FFFD
// (Unicode 15, section 3.9).
std::string as_utf8(std::string_view bytes);
// Returns the offset of the first byte that is not well-formed UTF-8 (Unicode 15, table 3-7). Empty
// if all are.
std::optional<Index> invalid_utf8(std::string_view text);

bool is_white_space(char32_t c);      // White_Space
bool is_numeric(char32_t c);          // category N of Unicode 17
bool is_punctuation(char32_t c);      // category P of Unicode 8; in ASCII also S
bool is_mark(char32_t c);             // category M of Unicode 9
bool is_nonspacing_mark(char32_t c);  // category Mn of Unicode 8
bool is_control(char32_t c);          // categories Cc, Cf and Co of Unicode 8
// \w of UTS #18: Alphabetic, M, Nd, Pc, Join_Control; Unicode 16
bool is_alphanumeric(char32_t c);

// Returns a character of Unicode 14 that has the same size and belongs to the same classes, if `c`
// is newer (Unicode 15 to 16); otherwise `c`.
char32_t stand_in(char32_t c);
// Returns `text` with newer characters replaced by their stand-ins, except those in `named`.
// `storage` holds the result if there are such characters.
std::string_view with_stand_ins(std::string_view text, std::u32string_view named, std::string& storage);

// Unicode versions of the libraries that token ids may depend on: "PCRE2 14.0.0, ICU 15.0".
const std::string& unicode_versions();
// The same with the libraries' versions: "PCRE2 10.42 (Unicode 14.0.0), ICU 72.1 (Unicode 15.0)".
std::string unicode_libraries();

// Normal forms of Unicode 9. Newer characters stay as they are, and none compose across them.
enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalized(std::string_view text, NormalForm form);
// Converts each character to lower case by Unicode 17, regardless of its neighbours.
std::string lower_case(std::string_view text);

// Returns the end offset of each extended grapheme cluster (UAX #29), in bytes.
std::vector<std::size_t> grapheme_ends(std::string_view text);

}  // namespace sy
