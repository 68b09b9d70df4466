#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/tokenizers/unicode.h"

#include <pcre2.h>
#include <unicode/brkiter.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/utext.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <bitset>
#include <cstring>
#include <memory>

#include "kernels/check.h"
#include "src/tokenizers/newer_characters.h"

namespace sy {
namespace {

bool in_category(char32_t c, std::uint32_t mask) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & mask) != 0;
}

void check_icu(UErrorCode status, const char* what) {
  if (U_FAILURE(status)) fail("ICU cannot {}: {}: are its data installed?", what, u_errorName(status));
}

// Returns true if this major version of Unicode has the character. ICU must be at least that
// version.
bool is_of_unicode(char32_t c, int version) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] > 0 && age[0] <= version;
}

// Returns the row of a sorted table that contains the character, nullptr if there is none.
template <class Row, std::size_t n>
const Row* row_of(const Row (&table)[n], char32_t c) {
  const Row* row = std::upper_bound(std::begin(table), std::end(table), c,
                                    [](char32_t code, const Row& r) { return code < r.first; });
  return row != std::begin(table) && c <= (row - 1)->last ? row - 1 : nullptr;
}

// Blocks of 64 characters that contain newer characters.
constexpr char32_t end_of_newer = std::end(newer_characters)[-1].last + 1;
const std::bitset<end_of_newer / 64 + 1>& blocks_of_newer() {
  static const auto blocks = [] {
    std::bitset<end_of_newer / 64 + 1> made;
    for (const NewerCharacters& row : newer_characters)
      for (char32_t c = row.first; c <= row.last; ++c) made.set(c / 64);
    return made;
  }();
  return blocks;
}

struct LibraryVersions {
  std::string pcre2, unicode_of_pcre2, icu, unicode_of_icu;
};
LibraryVersions library_versions() {
  const auto of_pcre2 = [](std::uint32_t what) {
    std::string text(64, '\0');
    const int size = pcre2_config(what, text.data());  // includes the terminating zero
    text.resize(static_cast<std::size_t>(std::max(size - 1, 0)));
    return text;
  };
  const auto of_icu = [](const UVersionInfo& version) {
    char text[U_MAX_VERSION_STRING_LENGTH];
    u_versionToString(version, text);
    return std::string(text);
  };
  UVersionInfo icu, unicode;
  u_getVersion(icu);
  u_getUnicodeVersion(unicode);
  const std::string pcre2 = of_pcre2(PCRE2_CONFIG_VERSION);  // "10.42 2022-12-11"
  return {pcre2.substr(0, pcre2.find(' ')), of_pcre2(PCRE2_CONFIG_UNICODE_VERSION), of_icu(icu), of_icu(unicode)};
}

// Returns the normaliser of a form. It normalises only characters of Unicode 9.
const icu::Normalizer2& normalizer_of(NormalForm form) {
  static const auto made = [] {
    UErrorCode status = U_ZERO_ERROR;
    static icu::UnicodeSet known(UNICODE_STRING_SIMPLE("[:Age=9.0:]"), status);
    known.freeze();
    std::vector<std::unique_ptr<icu::Normalizer2>> all;
    for (const auto& get : {icu::Normalizer2::getNFCInstance, icu::Normalizer2::getNFDInstance,
                            icu::Normalizer2::getNFKCInstance, icu::Normalizer2::getNFKDInstance}) {
      const icu::Normalizer2* whole = get(status);
      check_icu(status, "normalise text");
      all.push_back(std::make_unique<icu::FilteredNormalizer2>(*whole, known));
    }
    return all;
  }();
  return *made[static_cast<std::size_t>(form)];
}

}  // namespace

Character character_at(std::string_view text, std::size_t at) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  UChar32 code;
  std::size_t next = at;
  U8_NEXT_UNSAFE(bytes, next, code);
  return {static_cast<char32_t>(code), next - at};
}

Character character_before(std::string_view text, std::size_t at) {
  std::size_t begin = at - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return character_at(text, begin);
}

void append_character(std::string& text, char32_t code) {
  char bytes[U8_MAX_LENGTH];
  int size = 0;
  U8_APPEND_UNSAFE(bytes, size, static_cast<UChar32>(code));
  text.append(bytes, static_cast<std::size_t>(size));
}

std::string as_utf8(std::string_view bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const auto size = static_cast<std::int64_t>(bytes.size());
  std::string text;
  text.reserve(bytes.size());
  for (std::int64_t at = 0; at < size;) {
    const std::int64_t begin = at;
    UChar32 code;
    U8_NEXT(data, at, size, code);
    if (code < 0)
      text += "\xEF\xBF\xBD";
    else
      text.append(bytes, static_cast<std::size_t>(begin), static_cast<std::size_t>(at - begin));
  }
  return text;
}

std::optional<Index> invalid_utf8(std::string_view text) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(text.data());
  const auto size = static_cast<Index>(text.size());
  for (Index at = 0; at < size;) {
    std::uint64_t eight;
    if (at + Index{sizeof eight} <= size) {  // most text is ASCII
      std::memcpy(&eight, data + at, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        at += Index{sizeof eight};
        continue;
      }
    }
    const Index begin = at;
    UChar32 code;
    U8_NEXT(data, at, size, code);
    if (code < 0) return begin;
  }
  return std::nullopt;
}

bool is_white_space(char32_t c) {
  return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0;
}
bool is_numeric(char32_t c) {
  return in_category(stand_in(c), U_GC_N_MASK) || row_of(newest_numbers, c);
}
bool is_punctuation(char32_t c) {
  if (c < 128) return in_category(c, U_GC_P_MASK | U_GC_S_MASK);
  // Both were punctuation in Unicode 8.
  if (c == 0x166D || c == 0x111C9) return true;
  return in_category(c, U_GC_P_MASK) && is_of_unicode(c, 8);
}
bool is_mark(char32_t c) {
  // In Unicode 9, U+1CF2 and U+1CF3 were marks, and U+111C9 was not.
  if (c == 0x1CF2 || c == 0x1CF3) return true;
  return in_category(c, U_GC_M_MASK) && is_of_unicode(c, 9) && c != 0x111C9;
}
bool is_nonspacing_mark(char32_t c) {
  // U+1734 was such a mark in Unicode 8. The other four were not.
  if (c == 0x1734) return true;
  return in_category(c, U_GC_MN_MASK) && is_of_unicode(c, 8) && c != 0x111C9 && c != 0x1885 && c != 0x1886 &&
         c != 0xA9BD;
}
bool is_control(char32_t c) {
  return in_category(c, U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK) && is_of_unicode(c, 8);
}
bool is_alphanumeric(char32_t c) {
  c = stand_in(c);
  return in_category(c, U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK) || u_isUAlphabetic(static_cast<UChar32>(c)) ||
         u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_JOIN_CONTROL);
}

char32_t stand_in(char32_t c) {
  if (c < newer_characters[0].first || c >= end_of_newer || !blocks_of_newer()[c / 64]) return c;
  const NewerCharacters* row = row_of(newer_characters, c);
  return row ? row->stand_in : c;
}

std::string_view with_stand_ins(std::string_view text, std::u32string_view named, std::string& storage) {
  bool copied = false;
  for (std::size_t at = 0; at < text.size();) {
    // Newer characters have at least three bytes.
    if (static_cast<unsigned char>(text[at]) < 0xE0) {
      ++at;
      continue;
    }
    const Character c = character_at(text, at);
    if (const char32_t other = stand_in(c.code); other != c.code && named.find(c.code) == named.npos) {
      if (!copied) storage.assign(text);
      copied = true;
      std::string bytes;
      append_character(bytes, other);
      storage.replace(at, c.size, bytes);
    }
    at += c.size;
  }
  return copied ? std::string_view(storage) : text;
}

const std::string& unicode_versions() {
  static const std::string text = [] {
    const LibraryVersions v = library_versions();
    return fmt::format("PCRE2 {}, ICU {}", v.unicode_of_pcre2, v.unicode_of_icu);
  }();
  return text;
}

std::string unicode_libraries() {
  const LibraryVersions v = library_versions();
  return fmt::format("PCRE2 {} (Unicode {}), ICU {} (Unicode {})", v.pcre2, v.unicode_of_pcre2, v.icu,
                     v.unicode_of_icu);
}

std::string normalized(std::string_view text, NormalForm form) {
  const icu::Normalizer2& normalizer = normalizer_of(form);
  UErrorCode status = U_ZERO_ERROR;
  std::string result;
  icu::StringByteSink<std::string> sink(&result, static_cast<std::int32_t>(text.size()));
  normalizer.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink, nullptr,
                           status);
  check_icu(status, "normalise text");
  return result;
}

std::string lower_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::size_t, std::string_view) {
    if (c == 0x130)  // becomes two characters: i and a dot above
      result += "i\xCC\x87";
    else if (const NewerCase* newer = row_of(newer_cases, c))
      append_character(result, newer->lower + (c - newer->first));
    else
      append_character(result, static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))));
  });
  return result;
}

std::vector<std::size_t> grapheme_ends(std::string_view text) {
  // One per thread, since making one takes a thousand times as long as segmenting a short text.
  thread_local const std::unique_ptr<icu::BreakIterator> graphemes = [] {
    UErrorCode status = U_ZERO_ERROR;
    std::unique_ptr<icu::BreakIterator> made(
        icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
    check_icu(status, "find the boundaries of characters");
    return made;
  }();
  UErrorCode status = U_ZERO_ERROR;
  UText* opened = utext_openUTF8(nullptr, text.data(), static_cast<std::int64_t>(text.size()), &status);
  graphemes->setText(opened, status);
  utext_close(opened);  // the iterator has a copy
  check_icu(status, "find the boundaries of characters");
  std::vector<std::size_t> ends;
  graphemes->first();
  for (std::int32_t at = graphemes->next(); at != icu::BreakIterator::DONE; at = graphemes->next())
    ends.push_back(static_cast<std::size_t>(at));
  return ends;
}

}  // namespace sy
