#include "src/tokenizers/pre_tokenizers.h"

#include <algorithm>

#include "src/tokenizers/bytes_alphabet.h"
#include "src/tokenizers/normalizers.h"
#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

// Treatment of the matches of a pattern, relative to the text between them.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const Json& component, const char* otherwise = nullptr) {
  constexpr const char* names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const std::string name = otherwise ? value_of<std::string>(component, "behavior", otherwise)
                                     : value_of<std::string>(component, "behavior");
  const auto* found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names))
    bad_component("the behavior '{}' is none of {}", name, fmt::to_string(fmt::join(names, ", ")));
  return static_cast<Behavior>(found - names);
}

struct Part {
  std::size_t begin, end;
  bool match;
};

// Joins each match to the part before it, unless that part is a match or ends with one.
void merge_with_previous(std::vector<Part>& parts) {
  std::size_t kept = 0;
  bool after_match = false;
  for (const Part part : parts) {
    if (part.match && !after_match && kept > 0)
      parts[kept - 1].end = part.end;
    else
      parts[kept++] = part;
    after_match = part.match;
  }
  parts.resize(kept);
}
void merge_with_next(std::vector<Part>& parts) {
  std::size_t kept = parts.size();
  bool before_match = false;
  for (std::size_t i = parts.size(); i-- > 0;) {
    const Part part = parts[i];
    if (part.match && !before_match && kept < parts.size())
      parts[kept].begin = part.begin;
    else
      parts[--kept] = part;
    before_match = part.match;
  }
  parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(kept));
}
// Joins adjacent parts that are both matches, or both not.
void merge_alike(std::vector<Part>& parts) {
  std::size_t kept = 0;
  for (const Part part : parts)
    if (kept > 0 && parts[kept - 1].match == part.match)
      parts[kept - 1].end = part.end;
    else
      parts[kept++] = part;
  parts.resize(kept);
}

// Divides each pre-token. divide(text, parts) appends parts that cover the text.
template <class Divide>
void split(Pieces& x, Behavior behavior, const Divide& divide) {
  std::vector<Pieces::Piece> pieces;
  pieces.reserve(x.pieces.size());
  std::vector<Part> parts;
  for (const Pieces::Piece& piece : x.pieces) {
    parts.clear();
    divide(std::string_view(x.text).substr(piece.begin, piece.end - piece.begin), parts);
    if (behavior == Behavior::merged_with_previous) merge_with_previous(parts);
    if (behavior == Behavior::merged_with_next) merge_with_next(parts);
    if (behavior == Behavior::contiguous) merge_alike(parts);
    for (const Part& part : parts)
      if (part.end > part.begin && !(behavior == Behavior::removed && part.match))
        pieces.push_back({piece.begin + part.begin, piece.begin + part.end, piece.first && part.begin == 0});
  }
  x.pieces = std::move(pieces);
}

void split(Pieces& x, Behavior behavior, const Regex& pattern, bool invert) {
  std::vector<Match> matches;
  split(x, behavior, [&](std::string_view text, std::vector<Part>& parts) {
    matches.clear();
    pattern.find(text, matches);
    std::size_t end = 0;
    for (const Match& match : matches) {
      if (match.begin > end) parts.push_back({end, match.begin, invert});
      parts.push_back({match.begin, match.end, !invert});
      end = match.end;
    }
    if (end < text.size()) parts.push_back({end, text.size(), invert});
  });
}

// Divides by characters: those with is_match(c) are the matches.
template <class IsMatch>
void split_characters(Pieces& x, Behavior behavior, const IsMatch& is_match) {
  split(x, behavior, [&](std::string_view text, std::vector<Part>& parts) {
    for_each_character(text, [&](char32_t c, std::size_t at, std::string_view character) {
      const bool match = is_match(c);
      if (!match && !parts.empty() && !parts.back().match)
        parts.back().end += character.size();
      else
        parts.push_back({at, at + character.size(), match});
    });
  });
}

// Replaces the text of each pre-token. write(piece, text, out) appends the new text to `out`.
template <class Write>
void rewrite(Pieces& x, const Write& write) {
  std::string text;
  text.reserve(x.text.size() + x.text.size() / 8 + x.pieces.size());
  for (Pieces::Piece& piece : x.pieces) {
    const std::size_t begin = text.size();
    write(piece, std::string_view(x.text).substr(piece.begin, piece.end - piece.begin), text);
    check_made(text.size(), x.most);
    piece.begin = begin;
    piece.end = text.size();
  }
  x.text = std::move(text);
}

PreTokenizer byte_level(const Json& component) {
  // The pattern of GPT-2.
  static const Regex words = Regex::of(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  const bool add_prefix_space = value_of<bool>(component, "add_prefix_space", true),
             use_regex = value_of<bool>(component, "use_regex", true);
  return [=](Pieces& x) {
    if (add_prefix_space)
      rewrite(x, [](const Pieces::Piece&, std::string_view piece, std::string& text) {
        if (!piece.starts_with(' ')) text += ' ';
        text += piece;
      });
    if (use_regex) split(x, Behavior::isolated, words, false);
    rewrite(x,
            [](const Pieces::Piece&, std::string_view piece, std::string& text) { bytes_to_characters(piece, text); });
  };
}

PreTokenizer split_by_pattern(const Json& component) {
  return [pattern = pattern_of(component), behavior = behavior_of(component),
          invert = value_of<bool>(component, "invert", false)](Pieces& x) { split(x, behavior, pattern, invert); };
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
  return [=, code = character_at(mark, 0).code](Pieces& x) {
    rewrite(x, [&](const Pieces::Piece& piece, std::string_view old, std::string& text) {
      const bool marked = old.starts_with(' ') || old.starts_with(mark);
      if (!marked && (scheme == "always" || (scheme == "first" && piece.first))) text += mark;
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
  return [=](Pieces& x) { split_characters(x, behavior, is_numeric); };
}

PreTokenizer punctuation(const Json& component) {
  return [behavior = behavior_of(component, "Isolated")](Pieces& x) { split_characters(x, behavior, is_punctuation); };
}

PreTokenizer whitespace(const Json&) {
  // Keeps sequences of word characters, and sequences of other characters that are not white space.
  // Removes the white space between them.
  return [](Pieces& x) {
    split(x, Behavior::removed, [](std::string_view text, std::vector<Part>& parts) {
      enum { none, word, other } last = none;
      for_each_character(text, [&](char32_t c, std::size_t at, std::string_view character) {
        const auto kind = is_word(c) ? word : is_white_space(c) ? none : other;
        if (kind != none && kind == last)
          parts.back().end += character.size();
        else if (kind != none)
          parts.push_back({at, at + character.size(), false});
        last = kind;
      });
    });
  };
}

PreTokenizer whitespace_split(const Json&) {
  return [](Pieces& x) { split_characters(x, Behavior::removed, is_white_space); };
}

PreTokenizer sequence_of_pre_tokenizers(const Json& component) {
  return sequence_of<Pieces>(component, "pretokenizers", make_pre_tokenizer);
}

constexpr Kind<PreTokenizer> pre_tokenizer_kinds[] = {
    {"Sequence", sequence_of_pre_tokenizers},
    {"ByteLevel", byte_level},
    {"Split", split_by_pattern},
    {"Metaspace", metaspace},
    {"Digits", digits},
    {"Punctuation", punctuation},
    {"Whitespace", whitespace},
    {"WhitespaceSplit", whitespace_split},
};

}  // namespace

PreTokenizer make_pre_tokenizer(const Json& component) {
  return make_step<Pieces>("pre_tokenizer", component, pre_tokenizer_kinds);
}

}  // namespace sy
