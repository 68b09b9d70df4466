#include "src/tokenizers/pre_tokenizers.h"

#include <algorithm>

#include "src/tokenizers/bytes_alphabet.h"
#include "src/tokenizers/normalizers.h"
#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

// Treatment of the matches of a pattern, relative to the text between them.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const Json& component, const char* fallback = nullptr) {
  constexpr const char* names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const std::string name =
      fallback ? value_of<std::string>(component, "behavior", fallback) : value_of<std::string>(component, "behavior");
  const auto* found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names))
    bad_component("the behavior '{}' is none of {}", name, fmt::to_string(fmt::join(names, ", ")));
  return static_cast<Behavior>(found - names);
}

struct Span {
  std::size_t begin, end;
  bool match;
};

// Returns true if adjacent spans become one.
bool joins(Behavior behavior, const Span& left, const Span& right) {
  return (behavior == Behavior::merged_with_previous && !left.match && right.match) ||
         (behavior == Behavior::merged_with_next && left.match && !right.match) ||
         (behavior == Behavior::contiguous && left.match == right.match);
}

// Divides each pre-token. divide(text, spans) appends spans that cover the text.
template <class Divide>
void split(PreTokenizedText& x, Behavior behavior, const Divide& divide) {
  std::vector<PreTokenizedText::PreToken> pre_tokens;
  pre_tokens.reserve(x.pre_tokens.size());
  std::vector<Span> spans;
  for (const PreTokenizedText::PreToken& pre_token : x.pre_tokens) {
    spans.clear();
    divide(std::string_view(x.text).substr(pre_token.begin, pre_token.end - pre_token.begin), spans);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const std::size_t begin = spans[i].begin;
      const bool match = spans[i].match;
      while (i + 1 < spans.size() && joins(behavior, spans[i], spans[i + 1])) ++i;
      const std::size_t end = spans[i].end;
      if (end > begin && !(behavior == Behavior::removed && match))
        pre_tokens.push_back({pre_token.begin + begin, pre_token.begin + end, pre_token.first && begin == 0});
    }
  }
  x.pre_tokens = std::move(pre_tokens);
}

void split(PreTokenizedText& x, Behavior behavior, const Regex& pattern, bool invert) {
  std::vector<Match> matches;
  split(x, behavior, [&](std::string_view text, std::vector<Span>& spans) {
    matches.clear();
    pattern.find(text, matches);
    std::size_t end = 0;
    for (const Match& match : matches) {
      if (match.begin > end) spans.push_back({end, match.begin, invert});
      spans.push_back({match.begin, match.end, !invert});
      end = match.end;
    }
    if (end < text.size()) spans.push_back({end, text.size(), invert});
  });
}

// Divides by characters: those with is_match(c) are the matches.
template <class IsMatch>
void split_characters(PreTokenizedText& x, Behavior behavior, const IsMatch& is_match) {
  split(x, behavior, [&](std::string_view text, std::vector<Span>& spans) {
    for_each_character(text, [&](char32_t c, std::size_t at, std::string_view character) {
      const bool match = is_match(c);
      if (!match && !spans.empty() && !spans.back().match)
        spans.back().end += character.size();
      else
        spans.push_back({at, at + character.size(), match});
    });
  });
}

// Replaces the text of each pre-token. write(pre_token, text, out) appends the new text to `out`.
template <class Write>
void rewrite(PreTokenizedText& x, const Write& write) {
  std::string text;
  text.reserve(x.text.size() + x.text.size() / 8 + x.pre_tokens.size());
  for (PreTokenizedText::PreToken& pre_token : x.pre_tokens) {
    const std::size_t begin = text.size();
    write(pre_token, std::string_view(x.text).substr(pre_token.begin, pre_token.end - pre_token.begin), text);
    check_output_size(text.size(), x.most);
    pre_token.begin = begin;
    pre_token.end = text.size();
  }
  x.text = std::move(text);
}

PreTokenizer byte_level(const Json& component) {
  // The pattern of GPT-2.
  static const Regex pattern =
      Regex::of(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  const bool add_prefix_space = value_of<bool>(component, "add_prefix_space", true),
             use_regex = value_of<bool>(component, "use_regex", true);
  return [=](PreTokenizedText& x) {
    if (add_prefix_space)
      rewrite(x, [](const PreTokenizedText::PreToken&, std::string_view old, std::string& text) {
        if (!old.starts_with(' ')) text += ' ';
        text += old;
      });
    if (use_regex) split(x, Behavior::isolated, pattern, false);
    rewrite(x, [](const PreTokenizedText::PreToken&, std::string_view old, std::string& text) {
      bytes_to_characters(old, text);
    });
  };
}

PreTokenizer split_by_pattern(const Json& component) {
  return [pattern = pattern_of(component), behavior = behavior_of(component),
          invert = value_of<bool>(component, "invert", false)](PreTokenizedText& x) {
    split(x, behavior, pattern, invert);
  };
}

PreTokenizer metaspace(const Json& component) {
  const std::string mark = value_of<std::string>(component, "replacement");
  if (mark.empty() || character_at(mark, 0).size != mark.size())
    bad_component("the replacement '{}' is not one character", mark);
  const bool adds = value_of<bool>(component, "add_prefix_space", true);  // used by older files
  const std::string scheme = value_of<std::string>(component, "prepend_scheme", adds ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    bad_component("prepend_scheme '{}' is none of always, first, never", scheme);
  const bool divides = value_of<bool>(component, "split", true);
  return [=, code = character_at(mark, 0).code](PreTokenizedText& x) {
    rewrite(x, [&](const PreTokenizedText::PreToken& pre_token, std::string_view old, std::string& text) {
      const bool marked = old.starts_with(' ') || old.starts_with(mark);
      if (!marked && (scheme == "always" || (scheme == "first" && pre_token.first))) text += mark;
      for (std::size_t at = 0; at < old.size();) {
        const std::size_t blank = std::min(old.find(' ', at), old.size());
        text += old.substr(at, blank - at);
        if (blank < old.size()) text += mark;
        at = blank + 1;
      }
    });
    if (divides) split_characters(x, Behavior::merged_with_next, [&](char32_t c) { return c == code; });
  };
}

PreTokenizer digits(const Json& component) {
  const Behavior behavior =
      value_of<bool>(component, "individual_digits", false) ? Behavior::isolated : Behavior::contiguous;
  return [=](PreTokenizedText& x) { split_characters(x, behavior, is_numeric); };
}

PreTokenizer punctuation(const Json& component) {
  return [behavior = behavior_of(component, "Isolated")](PreTokenizedText& x) {
    split_characters(x, behavior, is_punctuation);
  };
}

PreTokenizer whitespace(const Json&) {
  // Keeps sequences of word characters, and sequences of other characters that are not white space.
  // Removes the white space between them.
  return [](PreTokenizedText& x) {
    split(x, Behavior::removed, [](std::string_view text, std::vector<Span>& spans) {
      enum { none, alphanumeric, other } last = none;
      for_each_character(text, [&](char32_t c, std::size_t at, std::string_view character) {
        const auto kind = is_alphanumeric(c) ? alphanumeric : is_white_space(c) ? none : other;
        if (kind != none && kind == last)
          spans.back().end += character.size();
        else if (kind != none)
          spans.push_back({at, at + character.size(), false});
        last = kind;
      });
    });
  };
}

PreTokenizer whitespace_split(const Json&) {
  return [](PreTokenizedText& x) { split_characters(x, Behavior::removed, is_white_space); };
}

PreTokenizer bert_pre_tokenizer(const Json&) {
  return [](PreTokenizedText& x) {
    split_characters(x, Behavior::removed, is_white_space);
    split_characters(x, Behavior::isolated, is_punctuation);
  };
}

constexpr Kind<PreTokenizer> pre_tokenizer_kinds[] = {
    {"Sequence",
     [](const Json& json) { return sequence_of<PreTokenizedText>(json, "pretokenizers", make_pre_tokenizer); }},
    {"ByteLevel", byte_level},
    {"Split", split_by_pattern},
    {"Metaspace", metaspace},
    {"Digits", digits},
    {"Punctuation", punctuation},
    {"Whitespace", whitespace},
    {"WhitespaceSplit", whitespace_split},
    {"BertPreTokenizer", bert_pre_tokenizer},
};

}  // namespace

PreTokenizer make_pre_tokenizer(const Json& component) {
  return make_step<PreTokenizedText>("pre_tokenizer", component, pre_tokenizer_kinds);
}

}  // namespace sy
