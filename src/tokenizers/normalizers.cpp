#include "src/tokenizers/normalizers.h"

#include <algorithm>

#include "src/tokenizers/bytes_alphabet.h"
#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

template <NormalForm form>
Normalizer normal_form(const Json&) {
  return [](NormalText& x) { x.text = normalized(x.text, form); };
}

Normalizer lowercase(const Json&) {
  return [](NormalText& x) { x.text = lower_case(x.text); };
}

Normalizer strip_accents(const Json&) {
  return [](NormalText& x) {
    std::string result;
    for_each_character(x.text, [&](char32_t c, std::size_t at, std::string_view character) {
      if (!is_mark(c))
        result += character;
      else if (at == 0)
        x.first = false;
    });
    x.text = std::move(result);
  };
}

Normalizer strip(const Json& component) {
  const bool left = value_of<bool>(component, "strip_left"), right = value_of<bool>(component, "strip_right");
  return [=](NormalText& x) {
    std::size_t begin = x.text.size(), end = 0;  // range without white space at the ends
    for_each_character(x.text, [&](char32_t c, std::size_t at, std::string_view character) {
      if (is_white_space(c)) return;
      begin = std::min(begin, at);
      end = at + character.size();
    });
    if (right) x.text.resize(end);
    begin = std::min(begin, x.text.size());
    if (!left || begin == 0) return;
    x.text.erase(0, begin);
    x.first = false;
  };
}

Normalizer prepend(const Json& component) {
  return [front = value_of<std::string>(component, "prepend")](NormalText& x) {
    check_output_size(x.text.size() + front.size(), x.most);
    if (!x.text.empty()) x.text.insert(0, front);
  };
}

Normalizer replace(const Json& component) {
  return [pattern = pattern_of(component), content = value_of<std::string>(component, "content")](NormalText& x) {
    std::vector<Match> matches;
    pattern.find(x.text, matches);
    if (matches.empty()) return;
    std::string replaced = replace_matches(x.text, matches, content, x.most);
    // `tokenizers` maps a replacement of several characters to the last of them.
    const Match& front = matches.front();
    if (front.begin == 0 && front.end > 0 && (content.empty() || front.end > character_at(x.text, 0).size))
      x.first = false;
    x.text = std::move(replaced);
  };
}

Normalizer bytes_as_characters(const Json&) {
  return [](NormalText& x) {
    std::string characters;
    bytes_to_characters(x.text, characters);
    x.text = std::move(characters);
  };
}

// Han characters of the blocks that BERT treats as words. The last but one block begins 0x100 too
// late, as in `tokenizers`.
bool is_chinese(char32_t c) {
  constexpr std::pair<char32_t, char32_t> blocks[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                                      {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF},
                                                      {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(blocks), std::end(blocks),
                     [c](const auto& block) { return c >= block.first && c <= block.second; });
}

// Replaces each character by edit(c, character). An empty result for the first one clears x.first.
template <class Edit>
void edit_characters(NormalText& x, const Edit& edit) {
  std::string result;
  for_each_character(x.text, [&](char32_t c, std::size_t at, std::string_view character) {
    const std::size_t before = result.size();
    edit(c, character, result);
    if (at == 0 && result.size() == before) x.first = false;
  });
  check_output_size(result.size(), x.most);
  x.text = std::move(result);
}

Normalizer bert_normalizer(const Json& component) {
  const bool cleans = value_of<bool>(component, "clean_text", true),
             divides = value_of<bool>(component, "handle_chinese_chars", true),
             lowers = value_of<bool>(component, "lowercase", true),
             strips = value_of<bool>(component, "strip_accents", lowers);
  return [=](NormalText& x) {
    if (cleans)
      edit_characters(x, [](char32_t c, std::string_view character, std::string& result) {
        const bool is_line_break = c == '\t' || c == '\n' || c == '\r';
        if (is_line_break || (is_white_space(c) && !is_control(c)))
          result += ' ';
        else if (c != 0xFFFD && !is_control(c))
          result += character;
      });
    if (divides)
      edit_characters(x, [](char32_t c, std::string_view character, std::string& result) {
        if (is_chinese(c)) result += ' ';
        result += character;
        if (is_chinese(c)) result += ' ';
      });
    if (strips) {
      x.text = normalized(x.text, NormalForm::nfd);
      edit_characters(x, [](char32_t c, std::string_view character, std::string& result) {
        if (!is_nonspacing_mark(c)) result += character;
      });
    }
    if (lowers) x.text = lower_case(x.text);
  };
}

constexpr Kind<Normalizer> normalizer_kinds[] = {
    {"Sequence", [](const Json& json) { return sequence_of<NormalText>(json, "normalizers", make_normalizer); }},
    {"NFC", normal_form<NormalForm::nfc>},
    {"NFD", normal_form<NormalForm::nfd>},
    {"NFKC", normal_form<NormalForm::nfkc>},
    {"NFKD", normal_form<NormalForm::nfkd>},
    {"Lowercase", lowercase},
    {"StripAccents", strip_accents},
    {"Strip", strip},
    {"Prepend", prepend},
    {"Replace", replace},
    {"Precompiled", make_precompiled},
    {"ByteLevel", bytes_as_characters},
    {"BertNormalizer", bert_normalizer},
};

}  // namespace

Normalizer make_normalizer(const Json& component) {
  return make_step<NormalText>("normalizer", component, normalizer_kinds);
}

std::string replace_matches(std::string_view text, const std::vector<Match>& matches, std::string_view content,
                            std::size_t most, std::size_t before) {
  std::string replaced;
  std::size_t copied = 0;
  for (const Match& match : matches) {
    replaced.append(text, copied, match.begin - copied).append(content);
    check_output_size(before + replaced.size(), most);
    copied = match.end;
  }
  return replaced.append(text, copied);
}

Regex pattern_of(const Json& component) {
  const Json& pattern = component.at("pattern");
  return pattern.contains("String") ? Regex::of_text(value_of<std::string>(pattern, "String"))
                                    : Regex::of(value_of<std::string>(pattern, "Regex"));
}

}  // namespace sy
