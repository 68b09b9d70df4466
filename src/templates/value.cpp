#include "src/templates/value.h"

#include <fmt/format.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/tokenizers/unicode.h"

namespace sy::templates {
namespace {

constexpr int deepest = 200;  // levels of nested lists and dicts

void check_depth(int depth) {
  if (depth > deepest) throw ValueError(fmt::format("a value has more than {} levels", deepest));
}

// str.isspace() of Python.
bool is_space(char32_t c) {
  return (c >= 0x1c && c <= 0x1f) || is_white_space(c);
}

std::string float_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  // The shortest digits that give x again, in scientific notation beyond 1e-4 and 1e16.
  char buffer[64];
  const double size = std::abs(x);
  const bool scientific = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto end =
      std::to_chars(buffer, std::end(buffer), x, scientific ? std::chars_format::scientific : std::chars_format::fixed)
          .ptr;
  std::string text(buffer, end);
  return scientific || text.find('.') != text.npos ? text : text + ".0";
}

// Appends a backslash and the letter of a character. Returns false if it is none of `escaped`.
bool append_escape(std::string& out, char32_t c, std::string_view escaped, std::string_view letters) {
  const std::size_t at = c < 128 ? escaped.find(static_cast<char>(c)) : escaped.npos;
  if (at != escaped.npos) out.append(1, '\\').append(1, letters[at]);
  return at != escaped.npos;
}

std::string quoted_json(std::string_view text, bool ascii) {
  std::string out = "\"";
  for_each_character(text, [&](char32_t c, std::size_t, std::string_view bytes) {
    if (append_escape(out, c, "\"\\\b\f\n\r\t", "\"\\bfnrt")) return;
    if (c >= 0x10000 && ascii) {
      const char32_t rest = c - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + static_cast<unsigned>(rest >> 10),
                         0xdc00 + static_cast<unsigned>(rest & 0x3ff));
    } else if (c < 32 || (c > 126 && ascii)) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += bytes;
    }
  });
  return out + '"';
}

std::string quoted_repr(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  const std::string escaped = {quote, '\\', '\n', '\r', '\t'}, letters = {quote, '\\', 'n', 'r', 't'};
  std::string out(1, quote);
  for_each_character(text, [&](char32_t c, std::size_t, std::string_view bytes) {
    if (append_escape(out, c, escaped, letters)) return;
    constexpr std::uint32_t not_printable =
        U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CS_MASK | U_GC_CO_MASK | U_GC_ZL_MASK | U_GC_ZP_MASK | U_GC_ZS_MASK;
    const auto code = static_cast<std::uint32_t>(c);
    if (c == U' ' || (U_GET_GC_MASK(static_cast<UChar32>(c)) & not_printable) == 0)
      out += bytes;
    else
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
  });
  return out + quote;
}

std::string joined(const List& items, int depth) {
  std::string out;
  for (const Value& item : items) out += (out.empty() ? "" : ", ") + repr(item, depth + 1);
  return out;
}

template <class Convert>
std::string converted(std::string_view text, const Convert& convert) {
  icu::UnicodeString string =
      icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
  convert(string);
  std::string out;
  string.toUTF8String(out);
  return out;
}

}  // namespace

Value::Value(const Json& json) {
  if (json.is_string())
    *this = Value(as_utf8(json.get<std::string>()));
  else if (json.is_integer())
    *this = Value(json.get<std::int64_t>());
  else if (json.is_number())
    *this = Value(json.get<double>());
  else if (json.is_array()) {
    List items;
    for (const Json& element : json) items.emplace_back(element);
    *this = Value(std::move(items));
  } else if (json.is_object()) {
    Dict items;
    for (const Json::Member& member : json.members()) set_item(items, Value(member.name), Value(member.value));
    *this = Value(std::move(items));
  } else if (!json.is_null()) {
    *this = Value(json.get<bool>());
  }
}

const std::string& Value::need_string(std::string_view what) const {
  if (const std::string* s = string()) return *s;
  throw ValueError(fmt::format("{} is {}, not a string", what, type_name(*this)));
}
std::int64_t Value::need_integer(std::string_view what) const {
  if (const auto* i = std::get_if<std::int64_t>(&data)) return *i;
  if (const auto* b = std::get_if<bool>(&data)) return *b ? 1 : 0;
  throw ValueError(fmt::format("{} is {}, not an integer", what, type_name(*this)));
}
double Value::number() const {
  if (const auto* x = std::get_if<double>(&data)) return *x;
  return static_cast<double>(need_integer("a number"));
}

const Value* Namespace::find(std::string_view name) const {
  const auto found = std::ranges::find_if(attributes, [&](const auto& a) { return a.first == name; });
  return found == attributes.end() ? nullptr : &found->second;
}
void Namespace::set(std::string_view name, Value value) {
  if (const Value* known = find(name))
    *const_cast<Value*>(known) = std::move(value);
  else
    attributes.emplace_back(name, std::move(value));
}

const char* type_name(const Value& value) {
  static constexpr const char* names[] = {"undefined", "none",       "a boolean",  "an integer", "a float",
                                          "a string",  "a list",     "a tuple",    "a dict",     "a namespace",
                                          "a macro",   "a function", "a generator"};
  return names[value.data.index()];
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is<None>()) return false;
  if (value.is_number()) return value.number() != 0;
  if (const std::string* s = value.string()) return !s->empty();
  if (const List* l = value.list()) return !l->empty();
  if (const Dict* d = value.dict()) return !d->empty();
  return true;
}

bool equal(const Value& a, const Value& b, int depth) {
  check_depth(depth);
  if (a.is_number() && b.is_number()) {
    if (a.is<double>() || b.is<double>()) return a.number() == b.number();
    return a.need_integer("a number") == b.need_integer("a number");
  }
  if (a.data.index() != b.data.index()) return false;
  if (a.is_undefined() || a.is<None>()) return true;
  if (const std::string* s = a.string()) return *s == *b.string();
  if (const List* l = a.list())
    return std::ranges::equal(*l, *b.list(), [&](const Value& x, const Value& y) { return equal(x, y, depth + 1); });
  if (const Dict* d = a.dict())
    return d->size() == b.dict()->size() && std::ranges::all_of(*d, [&](const auto& item) {
             const Value* other = find(*b.dict(), item.first);
             return other && equal(item.second, *other, depth + 1);
           });
  if (const auto* space = std::get_if<Namespace*>(&a.data)) return *space == std::get<Namespace*>(b.data);
  if (const auto* macro = std::get_if<const Macro*>(&a.data)) return *macro == std::get<const Macro*>(b.data);
  if (const auto* generator = std::get_if<Generator>(&a.data))
    return generator->next == std::get<Generator>(b.data).next;
  const Function &f = std::get<Function>(a.data), &g = std::get<Function>(b.data);
  return f.name == g.name && f.self == g.self;
}

int compare(const Value& a, const Value& b, int depth) {
  check_depth(depth);
  const auto order = [](auto x, auto y) { return x < y ? -1 : x > y; };
  if (a.is_number() && b.is_number())
    return a.is<double>() || b.is<double>() ? order(a.number(), b.number())
                                            : order(a.need_integer("a number"), b.need_integer("a number"));
  if (a.is_string() && b.is_string()) return a.string()->compare(*b.string());
  if (a.data.index() == b.data.index() && a.list()) {
    const List &x = *a.list(), &y = *b.list();
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i], depth + 1)) return compare(x[i], y[i], depth + 1);
    return order(x.size(), y.size());
  }
  throw ValueError(fmt::format("{} and {} have no order", type_name(a), type_name(b)));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (const std::string* s = container.string()) return s->find(item.need_string("the left side of 'in'")) != s->npos;
  if (const List* l = container.list()) return std::ranges::any_of(*l, [&](const Value& x) { return equal(x, item); });
  if (const Dict* d = container.dict()) return find(*d, item) != nullptr;
  if (const auto* generator = std::get_if<Generator>(&container.data)) {
    while (const Value* x = generator->visit())
      if (equal(*x, item)) return true;
    return false;
  }
  throw ValueError(fmt::format("'in' is not possible for {}", type_name(container)));
}

const Value* find(const Dict& dict, const Value& key) {
  const auto found = std::ranges::find_if(dict, [&](const auto& item) { return equal(item.first, key); });
  return found == dict.end() ? nullptr : &found->second;
}

void set_item(Dict& dict, Value key, Value value) {
  if (const Value* known = find(dict, key))
    *const_cast<Value*>(known) = std::move(value);
  else
    dict.emplace_back(std::move(key), std::move(value));
}

std::string text_of(const Value& value) {
  if (value.is_undefined()) return "";
  if (const std::string* s = value.string()) return *s;
  return repr(value);
}

std::string repr(const Value& value, int depth) {
  check_depth(depth);
  if (value.is_undefined()) return "Undefined";
  if (value.is<None>()) return "None";
  if (const auto* b = std::get_if<bool>(&value.data)) return *b ? "True" : "False";
  if (const auto* i = std::get_if<std::int64_t>(&value.data)) return std::to_string(*i);
  if (const auto* x = std::get_if<double>(&value.data)) return float_text(*x);
  if (const std::string* s = value.string()) return quoted_repr(*s);
  if (value.is<Tuple>())
    return fmt::format("({}{})", joined(*value.list(), depth), value.list()->size() == 1 ? "," : "");
  if (const List* l = value.list()) return fmt::format("[{}]", joined(*l, depth));
  if (const Dict* d = value.dict()) {
    std::string out;
    for (const auto& [key, item] : *d)
      out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", repr(key, depth + 1), repr(item, depth + 1));
    return fmt::format("{{{}}}", out);
  }
  throw ValueError(fmt::format("{} has no text", type_name(value)));
}

std::string json_of(const Value& value, const JsonStyle& style, int depth) {
  check_depth(depth);
  if (value.is<None>()) return "null";
  if (const auto* b = std::get_if<bool>(&value.data)) return *b ? "true" : "false";
  if (const auto* x = std::get_if<double>(&value.data); x && !std::isfinite(*x))
    return std::isnan(*x) ? "NaN" : *x < 0 ? "-Infinity" : "Infinity";
  if (value.is_number()) return repr(value);
  if (const std::string* s = value.string()) return quoted_json(*s, style.ascii);
  const auto new_line = [&](int level) {
    return style.indent < 0 ? std::string() : '\n' + std::string(static_cast<std::size_t>(style.indent * level), ' ');
  };
  std::string out;
  const auto add = [&](const std::string& item) {
    if (!out.empty()) out += style.item_separator;
    out += new_line(depth + 1) + item;
  };
  if (const List* l = value.list()) {
    for (const Value& item : *l) add(json_of(item, style, depth + 1));
    return fmt::format("[{}{}]", out, l->empty() ? "" : new_line(depth));
  }
  if (const Dict* d = value.dict()) {
    Dict items = *d;
    if (style.sort_keys)
      std::ranges::stable_sort(items, [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    for (const auto& [key, item] : items) {
      const bool is_text = key.is_string();
      if (!is_text && !key.is_number() && !key.is<None>())
        throw ValueError(fmt::format("{} is no key of JSON", type_name(key)));
      const std::string name = json_of(key, style, depth + 1);
      add((is_text ? name : '"' + name + '"') + style.key_separator + json_of(item, style, depth + 1));
    }
    return fmt::format("{{{}{}}}", out, d->empty() ? "" : new_line(depth));
  }
  throw ValueError(fmt::format("{} cannot become JSON", type_name(value)));
}

const Value* Generator::visit() const {
  return *next < items->size() ? &(*items)[(*next)++] : nullptr;
}

std::vector<std::string_view> lines_of(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for_each_character(text, [&](char32_t c, std::size_t at, std::string_view bytes) {
    constexpr std::u32string_view ends = U"\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029";
    if (at < begin || ends.find(c) == ends.npos) return;
    const std::size_t end = at + (text.substr(at, 2) == "\r\n" ? 2 : bytes.size());
    lines.push_back(text.substr(begin, (keep_ends ? end : at) - begin));
    begin = end;
  });
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::int64_t most_items(const Value& value) {
  const auto* generator = std::get_if<Generator>(&value.data);
  return generator ? static_cast<std::int64_t>(generator->items->size()) : length_of(value);
}

List items_of(const Value& value) {
  if (value.is_undefined()) return {};
  if (const auto* generator = std::get_if<Generator>(&value.data)) {
    List rest;
    while (const Value* item = generator->visit()) rest.push_back(*item);
    return rest;
  }
  if (const List* l = value.list()) return *l;
  List items;
  if (const std::string* s = value.string()) {
    for (const std::string_view c : characters_of(*s)) items.emplace_back(std::string(c));
  } else if (const Dict* d = value.dict()) {
    for (const auto& item : *d) items.push_back(item.first);
  } else {
    throw ValueError(fmt::format("{} has no items", type_name(value)));
  }
  return items;
}

std::int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const List* l = value.list()) return static_cast<std::int64_t>(l->size());
  if (const Dict* d = value.dict()) return static_cast<std::int64_t>(d->size());
  if (const std::string* s = value.string())
    return std::ranges::count_if(*s, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  throw ValueError(fmt::format("{} has no length{}", type_name(value),
                               value.is<Generator>() ? ": apply the filter 'list' to it" : ""));
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for_each_character(text, [&](char32_t, std::size_t, std::string_view bytes) { characters.push_back(bytes); });
  return characters;
}

std::string_view stripped(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Character c = character_at(text, 0);
    if (!is_space(c.code)) break;
    text.remove_prefix(c.size);
  }
  while (right && !text.empty()) {
    const Character c = character_before(text, text.size());
    if (!is_space(c.code)) break;
    text.remove_suffix(c.size);
  }
  return text;
}

std::string upper_case(std::string_view text) {
  return converted(text, [](icu::UnicodeString& s) { s.toUpper(icu::Locale::getRoot()); });
}
std::string lower_case_of(std::string_view text) {
  return converted(text, [](icu::UnicodeString& s) { s.toLower(icu::Locale::getRoot()); });
}

}  // namespace sy::templates
