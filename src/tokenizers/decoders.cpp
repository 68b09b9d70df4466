#include "src/tokenizers/decoders.h"

#include <algorithm>
#include <charconv>

#include "src/tokenizers/bytes_alphabet.h"
#include "src/tokenizers/normalizers.h"
#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

using Tokens = std::vector<std::string>;

Decoder bytes_of_characters(const Json&) {
  return [](Tokens& tokens) {
    for (std::string& token : tokens) token = characters_to_bytes(token);
  };
}

Decoder byte_fallback(const Json&) {
  return [](Tokens& tokens) {
    for (std::string& token : tokens) {
      if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) continue;
      unsigned byte = 0;
      if (std::from_chars(token.data() + 3, token.data() + 5, byte, 16).ptr == token.data() + 5)
        token = static_cast<char>(byte);
    }
  };
}

Decoder fuse(const Json&) {
  return [](Tokens& tokens) {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens = {std::move(all)};
  };
}

Decoder marks_to_blanks(const Json& component) {
  const bool adds = value_of<bool>(component, "add_prefix_space", true);  // of older files
  const bool prepended = value_of<std::string>(component, "prepend_scheme", adds ? "always" : "never") != "never";
  const std::string mark = value_of<std::string>(component, "replacement");
  if (mark.empty()) bad_component("the replacement is empty");
  return [=](Tokens& tokens) {
    for (std::string& token : tokens) {
      // The first token loses all its marks, not the prepended one alone: so does it in `tokenizers`.
      const std::string_view blank = &token == tokens.data() && prepended ? "" : " ";
      for (std::size_t at = 0; (at = token.find(mark, at)) != token.npos; at += blank.size())
        token.replace(at, mark.size(), blank);
    }
  };
}

Decoder replace_in_tokens(const Json& component) {
  return [pattern = pattern_of(component), content = value_of<std::string>(component, "content")](Tokens& tokens) {
    constexpr std::size_t most = 1 << 24;
    std::vector<Match> matches;
    for (std::string& token : tokens) {
      if (as_utf8(token) != token) continue;  // a part of a character
      matches.clear();
      pattern.find(token, matches);
      std::string replaced;
      std::size_t copied = 0;
      for (const Match& match : matches) {
        replaced.append(token, copied, match.begin - copied).append(content);
        check_made(replaced.size(), most);
        copied = match.end;
      }
      token = replaced.append(token, copied);
    }
  };
}

Decoder strip_tokens(const Json& component) {
  const std::string content = value_of<std::string>(component, "content");
  const auto start = value_of<std::uint64_t>(component, "start"), stop = value_of<std::uint64_t>(component, "stop");
  if (content.empty() || character_at(content, 0).size != content.size())
    bad_component("the content '{}' is not one character", content);
  return [=](Tokens& tokens) {
    for (std::string& token : tokens) {
      std::string_view left = token;
      for (std::uint64_t i = 0; i < start && left.starts_with(content); ++i) left.remove_prefix(content.size());
      for (std::uint64_t i = 0; i < stop && left.ends_with(content); ++i) left.remove_suffix(content.size());
      token = std::string(left);
    }
  };
}

Decoder ends_of_words(const Json& component) {
  return [suffix = value_of<std::string>(component, "suffix")](Tokens& tokens) {
    if (suffix.empty()) return;
    for (std::string& token : tokens) {
      const std::string_view blank = &token == &tokens.back() ? "" : " ";
      for (std::size_t at = 0; (at = token.find(suffix, at)) != token.npos; at += blank.size())
        token.replace(at, suffix.size(), blank);
    }
  };
}

Decoder sequence_of_decoders(const Json& component) {
  return sequence_of<Tokens>(component, "decoders", make_decoder);
}

constexpr Kind<Decoder> decoder_kinds[] = {
    {"Sequence", sequence_of_decoders},
    {"ByteLevel", bytes_of_characters},
    {"Metaspace", marks_to_blanks},
    {"ByteFallback", byte_fallback},
    {"Fuse", fuse},
    {"Replace", replace_in_tokens},
    {"Strip", strip_tokens},
    {"BPEDecoder", ends_of_words},
};

}  // namespace

Decoder make_decoder(const Json& component) {
  if (component.is_null())
    return [](Tokens& tokens) {
      for (std::string& token : tokens)
        if (&token != tokens.data()) token.insert(0, " ");
    };
  return make_step<Tokens>("decoder", component, decoder_kinds);
}

}  // namespace sy
