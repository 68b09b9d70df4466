// Text to tokens, as jinja2/lexer.py.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "src/templates/syntax.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/tokenizers/unicode.h"

namespace sy::templates {
namespace {

constexpr std::string_view white_space = " \t\n\r\v\f\x1c\x1d\x1e\x1f";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (static_cast<unsigned char>(c) & 0x80);
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = find_tag();
      const char kind = tag < source_.size() ? source_[tag + 1] : '\0';
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      add_data(tag, kind, sign);
      if (kind == '\0') break;
      at_ = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
      if (kind == '#')
        comment();
      else if (kind != '%' || !raw())
        code(kind);
    }
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw SyntaxError(line_, reason); }

  void add(TokenKind kind, std::string text, Value value = {}) {
    tokens_.push_back({kind, line_, std::move(text), std::move(value)});
  }
  void skip_to(std::size_t at) {
    line_ += static_cast<int>(std::ranges::count(source_.substr(at_, at - at_), '\n'));
    at_ = at;
  }

  // Offset of the next tag, or the end of the source.
  std::size_t find_tag() const {
    for (std::size_t tag = source_.find('{', at_); tag < source_.size(); tag = source_.find('{', tag + 1))
      if (tag + 1 < source_.size() && std::strchr("{%#", source_[tag + 1]) && source_[tag + 1] != '\0') return tag;
    return source_.size();
  }

  void add_data(std::size_t end, char kind, char sign) {
    std::string_view data = source_.substr(at_, end - at_);
    if (sign == '-' && kind != '\0') {
      data = stripped(data, false, true);
    } else if (sign != '+' && (kind == '%' || kind == '#')) {
      // Blanks between the line's begin and the tag go, if nothing else is there.
      const std::size_t line = data.rfind('\n') + 1;
      if ((line > 0 || line_begins_) && stripped(data.substr(line), true, true).empty()) data = data.substr(0, line);
    }
    if (!data.empty()) add(TokenKind::data, std::string(data));
    skip_to(end);
  }

  // Skips white space after a tag that ends here. sign: before the end of the tag.
  void after_tag(char sign, bool trims) {
    std::size_t next = at_;
    if (sign == '-')
      next = source_.size() - stripped(source_.substr(at_), true, false).size();
    else if (sign != '+' && trims && at_ < source_.size() && source_[at_] == '\n')
      ++next;
    skip_to(next);
    line_begins_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  void comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == source_.npos) fail("the comment has no end: write #}");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    skip_to(end + 2);
    after_tag(sign, true);
  }

  // Matches a name, a sign and the end of a block, with blanks between. Returns the end.
  std::optional<std::size_t> block_with_name(std::size_t at, std::string_view name, char& sign) const {
    at = std::min(source_.find_first_not_of(white_space, at), source_.size());
    if (source_.substr(at, name.size()) != name) return std::nullopt;
    at = std::min(source_.find_first_not_of(white_space, at + name.size()), source_.size());
    sign = at < source_.size() ? source_[at] : '\0';
    if (sign == '-' || sign == '+') ++at;
    if (source_.substr(at, 2) != "%}") return std::nullopt;
    return at + 2;
  }
  // Adds the text of a raw block. Returns false if the block has another name.
  bool raw() {
    char sign = 0;
    const auto begin = block_with_name(at_, "raw", sign);
    if (!begin) return false;
    skip_to(*begin);
    after_tag(sign, false);
    for (std::size_t tag = source_.find("{%", at_); tag != source_.npos; tag = source_.find("{%", tag + 1)) {
      const char left = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const auto end = block_with_name(tag + 2 + (left == '-' || left == '+' ? 1 : 0), "endraw", sign);
      if (!end) continue;
      add_data(tag, '%', left);
      skip_to(*end);
      after_tag(sign, true);
      return true;
    }
    fail("the block raw has no end: write {% endraw %}");
  }

  // Tokens of {{ }} or {% %}. kind: '{' or '%'.
  void code(char kind) {
    const bool output = kind == '{';
    const std::string_view end = output ? "}}" : "%}";
    add(output ? TokenKind::output_begin : TokenKind::block_begin, "");
    std::string open;  // brackets
    while (true) {
      skip_to(std::min(source_.find_first_not_of(white_space, at_), source_.size()));
      if (at_ == source_.size()) fail(fmt::format("the tag has no end: write {}", end));
      const char c = source_[at_];
      const bool sign = (c == '-' || (c == '+' && !output)) && source_.substr(at_ + 1, 2) == end;
      if (open.empty() && (sign || source_.substr(at_, 2) == end)) {
        add(output ? TokenKind::output_end : TokenKind::block_end, "");
        at_ += sign ? 3 : 2;
        after_tag(sign ? c : '\0', !output);
        return;
      }
      if (is_digit(c))
        number();
      else if (begins_name(c))
        name();
      else if (c == '"' || c == '\'')
        string(c);
      else
        symbol(open);
    }
  }

  void name() {
    std::size_t end = at_;
    while (end < source_.size() && (begins_name(source_[end]) || is_digit(source_[end]))) ++end;
    add(TokenKind::name, std::string(source_.substr(at_, end - at_)));
    at_ = end;
  }

  void number() {
    std::string digits;
    bool is_float = false;
    std::size_t end = at_;
    const auto take_digits = [&] {
      for (; end < source_.size() && (is_digit(source_[end]) || source_[end] == '_'); ++end)
        if (source_[end] != '_') digits += source_[end];
    };
    const auto digit_at = [&](std::size_t at) { return at < source_.size() && is_digit(source_[at]); };
    take_digits();
    if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
      is_float = true;
      digits += source_[end++];
      take_digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const std::size_t signed_at = end + 1 < source_.size() && std::strchr("+-", source_[end + 1]) ? end + 2 : end + 1;
      if (digit_at(signed_at)) {
        is_float = true;
        digits += source_.substr(end, signed_at - end);
        end = signed_at;
        take_digits();
      }
    }
    const auto add_number = [&](const auto& parsed) {
      if (!parsed) fail("a number is out of range");
      add(TokenKind::literal, "", *parsed);
    };
    if (is_float)
      add_number(parse_number<double>(digits));
    else
      add_number(parse_number<std::int64_t>(digits));
    at_ = end;
  }

  void string(char quote) {
    std::string text;
    const int line = line_;
    std::size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\' || i + 1 == source_.size()) {
        text += source_[i];
        continue;
      }
      const char c = source_[++i];
      constexpr std::string_view letters = "abfnrtv\\'\"", bytes = "\a\b\f\n\r\t\v\\'\"";
      if (const std::size_t at = letters.find(c); at != letters.npos)
        text += bytes[at];
      else if (c == 'x' || c == 'u' || c == 'U')
        i = hexadecimal(i, c == 'x' ? 2 : c == 'u' ? 4 : 8, text);
      else if (c >= '0' && c <= '7')
        i = octal(i, text);
      else if (c == 'N')
        fail("\\N{NAME} in a string is not supported: write the character");
      else if (c != '\n')
        (text += '\\') += c;
    }
    if (i >= source_.size()) fail("a string has no end");
    skip_to(i + 1);
    tokens_.push_back({TokenKind::literal, line, "", Value(std::move(text))});
  }
  // Appends the character of one to three octal digits. Returns the offset of the last one.
  std::size_t octal(std::size_t at, std::string& text) const {
    char32_t code = 0;
    std::size_t end = at;
    for (; end < at + 3 && end < source_.size() && source_[end] >= '0' && source_[end] <= '7'; ++end)
      code = 8 * code + static_cast<char32_t>(source_[end] - '0');
    append_character(text, code);
    return end - 1;
  }
  // Appends the character of the digits after `at`. Returns the offset of the last digit.
  std::size_t hexadecimal(std::size_t at, std::size_t count, std::string& text) const {
    const std::string_view digits = source_.substr(at + 1, count);
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != count || error != std::errc() || end != digits.data() + count || code > 0x10ffff ||
        (code >= 0xd800 && code < 0xe000))
      fail(fmt::format("\\{} in a string needs {} hexadecimal digits of a character", source_[at], count));
    append_character(text, code);
    return at + count;
  }

  void symbol(std::string& open) {
    static constexpr std::string_view symbols[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "*",
                                                   "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                                   "]",  "{",  "}",  ".",  ",",  ":",  "|"};
    const auto found =
        std::ranges::find_if(symbols, [&](std::string_view s) { return source_.substr(at_, s.size()) == s; });
    if (found == std::end(symbols)) fail(fmt::format("unexpected character '{}'", source_[at_]));
    constexpr std::string_view opening = "([{", closing = ")]}";
    if (opening.find(*found) != opening.npos) open += source_[at_];
    if (const std::size_t pair = closing.find(*found); pair != closing.npos) {
      if (open.empty() || open.back() != opening[pair]) fail(fmt::format("unexpected '{}'", *found));
      open.pop_back();
    }
    add(TokenKind::symbol, std::string(*found));
    at_ += found->size();
  }

  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // at_ is at the begin of a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  std::string text = as_utf8(source);
  replace_all(text, "\r\n", "\n");
  replace_all(text, "\r", "\n");
  if (text.ends_with('\n')) text.pop_back();
  return Lexer(text).run();
}

}  // namespace sy::templates
