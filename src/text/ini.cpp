#include "src/text/ini.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "src/text/strings.h"
#include "src/text/table.h"

namespace sy {
namespace {

constexpr std::string_view blanks = " \t\r\v\f";

// Returns the text before a comment.
std::string_view before_comment(std::string_view s, Comments comments = Comments::after_blanks) {
  for (std::size_t at = s.find_first_of("#;"); at != s.npos; at = s.find_first_of("#;", at + 1)) {
    const bool after_blank = blanks.find(s[at == 0 ? 0 : at - 1]) != blanks.npos;
    if (at == 0 || (comments == Comments::anywhere ? s[at] == '#' : after_blank)) return s.substr(0, at);
  }
  return s;
}

// Returns the text between the quotes that start `s`. Empty optional if they do not close, an
// escape is invalid, or something other than a comment follows.
std::optional<std::string> unquoted(std::string_view s) {
  std::string out;
  for (std::size_t i = 1; i < s.size(); ++i) {
    if (s[i] == '"') {
      if (trimmed(before_comment(s.substr(i + 1))).empty()) return out;
      return {};
    }
    if (s[i] != '\\') {
      out += s[i];
      continue;
    }
    const char escape = ++i < s.size() ? s[i] : '\0';
    unsigned char byte = static_cast<unsigned char>(escape);
    if (escape == 'x') {
      if (i + 2 >= s.size()) return {};
      const auto read = std::from_chars(s.data() + i + 1, s.data() + i + 3, byte, 16);
      if (read.ec != std::errc() || read.ptr != s.data() + i + 3) return {};
      i += 2;
    } else if (escape != '"' && escape != '\\') {
      return {};
    }
    out += static_cast<char>(byte);
  }
  return {};
}

// Returns true if the byte occurs in no text file.
bool is_binary(char c) {
  return static_cast<unsigned char>(c) < ' ' && c != '\n' && blanks.find(c) == blanks.npos;
}

}  // namespace

IniText read_ini(std::string_view text, Comments comments) {
  IniText out;
  if (const auto control = std::find_if(text.begin(), text.end(), is_binary); control != text.end()) {
    const int line = 1 + static_cast<int>(std::count(text.begin(), control, '\n'));
    out.problems.push_back({line, fmt::format("a byte 0x{:02x}, which no text has: give a text file",
                                              static_cast<unsigned char>(*control))});
    return out;
  }
  std::string section;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  for (int line = 1; !text.empty(); ++line) {
    const std::size_t end = text.find('\n');
    const std::string_view whole = trimmed(text.substr(0, end)), code = trimmed(before_comment(whole, comments));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (code.empty()) continue;
    const std::size_t equals = code.find('=');
    const auto wrong = [&](std::string_view why) {
      out.problems.push_back({line, fmt::format("'{}': {}", fit_width(whole, 60), why)});
    };
    if (code.front() == '[' && code.back() == ']') {
      section = trimmed(code.substr(1, code.size() - 2));
    } else if (equals == code.npos || trimmed(code.substr(0, equals)).empty()) {
      wrong("lines are [section], key = value or # comment");
    } else {
      const std::string key(trimmed(code.substr(0, equals)));
      std::string value(trimmed(code.substr(equals + 1)));
      if (value.starts_with('"')) {
        // A comment sign may occur between the quotes.
        const auto inner = unquoted(trimmed(whole.substr(whole.find('=') + 1)));
        if (!inner) {
          wrong("the quotes do not close, or hold a \\ that is none of \\\" \\\\ \\xHH");
          continue;
        }
        value = *inner;
      }
      out.entries.push_back({section.empty() ? key : fmt::format("{}.{}", section, key), value, line});
    }
  }
  return out;
}

std::string ini_value(std::string_view value) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; };
  if (trimmed(value) == value && value.find_first_of("#;") == value.npos && !value.starts_with('"') &&
      std::none_of(value.begin(), value.end(), is_control))
    return std::string(value);
  std::string out = "\"";
  for (char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    if (is_control(c))
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + '"';
}

}  // namespace sy
