#include "src/tokenizers/decoders.h"

#include <charconv>

#include "src/text/strings.h"
#include "src/tokenizers/bytes_alphabet.h"
#include "src/tokenizers/normalizers.h"
#include "src/tokenizers/unicode.h"

namespace sy {
namespace {

Decoder bytes_of_characters(const Json&) {
  return [](DecodedTokens& x) {
    for (std::string& token : x.tokens) token = characters_to_bytes(token);
  };
}

Decoder byte_fallback(const Json&) {
  return [](DecodedTokens& x) {
    for (std::string& token : x.tokens) {
      if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) continue;
      unsigned byte = 0;
      if (std::from_chars(token.data() + 3, token.data() + 5, byte, 16).ptr == token.data() + 5)
        token = static_cast<char>(byte);
    }
  };
}

Decoder fuse(const Json&) {
  return [](DecodedTokens& x) { x.tokens = {join(x.tokens, "")}; };
}

Decoder marks_to_blanks(const Json& component) {
  const bool adds = value_of<bool>(component, "add_prefix_space", true);  // used by older files
  const bool prepended = value_of<std::string>(component, "prepend_scheme", adds ? "always" : "never") != "never";
  const std::string mark = value_of<std::string>(component, "replacement");
  if (mark.empty()) bad_component("the replacement is empty");
  return [=](DecodedTokens& x) {
    // The first token loses all its marks, not only the prepended one, as in `tokenizers`.
    for (std::string& token : x.tokens) replace_all(token, mark, &token == x.tokens.data() && prepended ? "" : " ");
  };
}

Decoder replace_in_tokens(const Json& component) {
  return [pattern = pattern_of(component), content = value_of<std::string>(component, "content")](DecodedTokens& x) {
    std::vector<Match> matches;
    std::size_t made = 0;  // total size of all tokens in bytes
    for (std::string& token : x.tokens) {
      matches.clear();
      // Otherwise the token has incomplete characters.
      if (as_utf8(token) == token) pattern.find(token, matches);
      token = replace_matches(token, matches, content, x.most, made);
      check_output_size(made += token.size(), x.most);
    }
  };
}

Decoder strip_tokens(const Json& component) {
  const std::string content = value_of<std::string>(component, "content");
  const auto start = value_of<std::uint64_t>(component, "start"), stop = value_of<std::uint64_t>(component, "stop");
  if (content.empty() || character_at(content, 0).size != content.size())
    bad_component("the content '{}' is not one character", content);
  return [=](DecodedTokens& x) {
    for (std::string& token : x.tokens) {
      std::string_view left = token;
      for (std::uint64_t i = 0; i < start && left.starts_with(content); ++i) left.remove_prefix(content.size());
      for (std::uint64_t i = 0; i < stop && left.ends_with(content); ++i) left.remove_suffix(content.size());
      token = std::string(left);
    }
  };
}

Decoder bpe_decoder(const Json& component) {
  return [suffix = value_of<std::string>(component, "suffix")](DecodedTokens& x) {
    if (suffix.empty()) return;
    for (std::string& token : x.tokens) replace_all(token, suffix, &token == &x.tokens.back() ? "" : " ");
  };
}

// Removes the blanks before punctuation and English contractions, as `tokenizers` does.
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> replacements[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : replacements) replace_all(text, from, to);
}

Decoder wordpiece(const Json& component) {
  return [prefix = value_of<std::string>(component, "prefix", "##"),
          cleans = value_of<bool>(component, "cleanup", true)](DecodedTokens& x) {
    for (std::string& token : x.tokens) {
      if (&token != x.tokens.data()) {
        if (!prefix.empty() && token.starts_with(prefix))
          token.erase(0, prefix.size());
        else if (!prefix.empty())
          token.insert(0, " ");
      }
      if (cleans) clean_up(token);
    }
  };
}

constexpr Kind<Decoder> decoder_kinds[] = {
    {"Sequence", [](const Json& json) { return sequence_of<DecodedTokens>(json, "decoders", make_decoder); }},
    {"ByteLevel", bytes_of_characters},
    {"Metaspace", marks_to_blanks},
    {"ByteFallback", byte_fallback},
    {"Fuse", fuse},
    {"Replace", replace_in_tokens},
    {"Strip", strip_tokens},
    {"BPEDecoder", bpe_decoder},
    {"WordPiece", wordpiece},
};

}  // namespace

Decoder make_decoder(const Json& component) {
  if (component.is_null())
    return [](DecodedTokens& x) {
      for (std::string& token : x.tokens)
        if (&token != x.tokens.data()) token.insert(0, " ");
    };
  return make_step<DecodedTokens>("decoder", component, decoder_kinds);
}

}  // namespace sy
