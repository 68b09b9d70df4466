#include "src/tokenizers/unicode.h"

#include <unicode/brkiter.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/utext.h>
#include <unicode/utf8.h>

#include <memory>

#include "kernels/check.h"

namespace sy {
namespace {

bool in_category(char32_t c, std::uint32_t mask) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & mask) != 0;
}

void check_icu(UErrorCode status, const char* what) {
  if (U_FAILURE(status)) fail("ICU cannot {}: {}: are its data installed?", what, u_errorName(status));
}

}  // namespace

Character character_at(std::string_view text, std::size_t at) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  UChar32 code;
  std::size_t next = at;
  U8_NEXT_UNSAFE(bytes, next, code);
  return {static_cast<char32_t>(code), next - at};
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

bool is_white_space(char32_t c) {
  return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0;
}
bool is_numeric(char32_t c) {
  return in_category(c, U_GC_N_MASK);
}
bool is_punctuation(char32_t c) {
  return in_category(c, c < 128 ? U_GC_P_MASK | U_GC_S_MASK : U_GC_P_MASK);
}
bool is_mark(char32_t c) {
  return in_category(c, U_GC_M_MASK);
}
bool is_word(char32_t c) {
  return in_category(c, U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK) || u_isUAlphabetic(static_cast<UChar32>(c)) ||
         u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_JOIN_CONTROL);
}

std::string normalized(std::string_view text, NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = form == NormalForm::nfc    ? icu::Normalizer2::getNFCInstance(status)
                                       : form == NormalForm::nfd  ? icu::Normalizer2::getNFDInstance(status)
                                       : form == NormalForm::nfkc ? icu::Normalizer2::getNFKCInstance(status)
                                                                  : icu::Normalizer2::getNFKDInstance(status);
  check_icu(status, "normalise text");
  std::string result;
  icu::StringByteSink<std::string> sink(&result, static_cast<std::int32_t>(text.size()));
  normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink, nullptr,
                            status);
  check_icu(status, "normalise text");
  return result;
}

std::string lower_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::size_t, std::string_view) {
    if (c == 0x130)  // the one that becomes two: i, and a dot above
      result += "i\xCC\x87";
    else
      append_character(result, static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))));
  });
  return result;
}

std::vector<std::size_t> ends_of_graphemes(std::string_view text) {
  // One for each thread, since making one takes a thousand times as long as a short text.
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
  utext_close(opened);  // the iterator has its own
  check_icu(status, "find the boundaries of characters");
  std::vector<std::size_t> ends;
  graphemes->first();
  for (std::int32_t at = graphemes->next(); at != icu::BreakIterator::DONE; at = graphemes->next())
    ends.push_back(static_cast<std::size_t>(at));
  return ends;
}

}  // namespace sy
