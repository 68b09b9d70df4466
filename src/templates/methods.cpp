// Methods of strings, dicts and loops, as Python's.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "src/templates/functions.h"
#include "src/text/strings.h"
#include "src/tokenizers/unicode.h"

namespace sy::templates {
namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

// Returns the first argument, a string.
const std::string& first_string(const Call& call, std::string_view name) {
  return call.arguments.need(0, name, call.name).need_string(fmt::format("the argument of {}()", call.name));
}

// strip, lstrip, rstrip
Value strip(const Call& call) {
  const bool left = call.name != "rstrip", right = call.name != "lstrip";
  const Value chars = call.argument(0, "chars");
  if (chars.is<None>()) return std::string(stripped(call.text(), left, right));
  const std::string& set = chars.need_string("the argument of strip()");
  const std::vector<std::string_view> all = characters_of(call.text()), removed = characters_of(set);
  const auto is_removed = [&](std::string_view c) { return std::ranges::find(removed, c) != removed.end(); };
  std::size_t begin = 0, end = all.size();
  while (left && begin < end && is_removed(all[begin])) ++begin;
  while (right && begin < end && is_removed(all[end - 1])) --end;
  std::string text;
  for (std::size_t i = begin; i < end; ++i) text += all[i];
  return text;
}

// Throws ValueError if there are more than `most` arguments.
void limit_arguments(const Call& call, std::size_t most) {
  if (call.arguments.positional.size() + call.arguments.named.size() > most)
    throw ValueError(fmt::format("{}() with more than {} arguments is not supported", call.name, most));
}

// startswith, endswith
Value affix(const Call& call) {
  limit_arguments(call, 1);
  const bool begins = call.name == "startswith";
  const auto has = [&](const Value& value) {
    const std::string& needle = value.need_string(fmt::format("the argument of {}()", call.name));
    return begins ? call.text().starts_with(needle) : call.text().ends_with(needle);
  };
  const Value& items = call.arguments.need(0, "prefix", call.name);
  return items.list() ? std::ranges::any_of(*items.list(), has) : has(items);
}

// removeprefix, removesuffix
Value without_affix(const Call& call) {
  const bool begins = call.name == "removeprefix";
  const std::string& needle = first_string(call, "prefix");
  if (begins ? !call.text().starts_with(needle) : !call.text().ends_with(needle)) return call.value;
  return call.text().substr(begins ? needle.size() : 0, call.text().size() - needle.size());
}

List split_at_blanks(std::string_view text, std::int64_t most) {
  List items;
  std::size_t begin = text.npos;  // of the current needle
  bool is_last = false;
  for_each_character(text, [&](char32_t, std::size_t at, std::string_view bytes) {
    const bool blank = stripped(bytes, true, true).empty();
    if (blank && begin != text.npos && !is_last) {
      items.emplace_back(std::string(text.substr(begin, at - begin)));
      begin = text.npos;
    } else if (!blank && begin == text.npos) {
      begin = at;
      is_last = static_cast<std::int64_t>(items.size()) == most;
    }
  });
  if (begin != text.npos) items.emplace_back(std::string(text.substr(begin)));
  return items;
}

// split, rsplit
Value split(const Call& call) {
  const Value separator = call.argument(0, "sep");
  const std::int64_t count = call.argument(1, "maxsplit", std::int64_t{-1}).need_integer("maxsplit");
  const std::int64_t most = count < 0 ? unlimited : count;
  std::string_view rest = call.text();
  call.budget.create(2 * rest.size());
  if (separator.is<None>()) {
    if (call.name == "rsplit" && most != unlimited) throw ValueError("rsplit() needs a separator here");
    List items = split_at_blanks(rest, most);
    call.budget.create(sizeof(Value) * items.size());
    return items;
  }
  const std::string& at = separator.need_string("the separator");
  if (at.empty()) throw ValueError("the separator of split() is empty");
  List items;
  const bool from_right = call.name == "rsplit";
  while (static_cast<std::int64_t>(items.size()) < most) {
    const std::size_t found = from_right ? rest.rfind(at) : rest.find(at);
    if (found == rest.npos) break;
    call.budget.create(sizeof(Value) + sizeof(std::string));
    items.emplace_back(std::string(from_right ? rest.substr(found + at.size()) : rest.substr(0, found)));
    rest = from_right ? rest.substr(0, found) : rest.substr(found + at.size());
  }
  items.emplace_back(std::string(rest));
  if (from_right) std::ranges::reverse(items);
  return items;
}

Value splitlines(const Call& call) {
  List lines;
  call.budget.create(2 * call.text().size());
  for (const std::string_view line : lines_of(call.text(), truth(call.argument(0, "keepends", false)))) {
    call.budget.create(sizeof(Value) + sizeof(std::string));
    lines.emplace_back(std::string(line));
  }
  return lines;
}

// The first letter of each run of letters becomes upper case. Jinja's filter has other words.
Value title_case(const Call& call) {
  std::string out;
  bool follows_letter = false;
  for (const std::string_view c : characters_of(call.text())) {
    const std::string upper = upper_case(c), lower = lower_case_of(c);
    out += follows_letter ? lower : upper;
    follows_letter = upper != lower;
  }
  return out;
}

Value as_filter(const Call& call) {  // replace, upper, lower, capitalize
  return apply_filter(call.name, call.value, call.arguments, call.budget);
}
Value join_with(const Call& call) {
  return apply_filter("join", call.arguments.need(0, "iterable", "join"), {{call.value}, {}}, call.budget);
}

// find, rfind, count
Value search(const Call& call) {
  limit_arguments(call, 1);
  const std::string &text = call.text(), &needle = first_string(call, "sub");
  if (call.name == "count") {
    if (needle.empty()) return length_of(call.value) + 1;
    std::int64_t count = 0;
    for (std::size_t at = text.find(needle); at != text.npos; at = text.find(needle, at + needle.size())) ++count;
    return count;
  }
  const std::size_t at = call.name == "find" ? text.find(needle) : text.rfind(needle);
  if (at == text.npos) return std::int64_t{-1};
  return length_of(Value(text.substr(0, at)));
}

// isdigit, isspace, isupper, islower, isalpha, isalnum: ASCII and white space
Value is_all(const Call& call) {
  const std::string& text = call.text();
  if (call.name == "isspace") return !text.empty() && stripped(text, true, true).empty();
  if (call.name == "isupper") return upper_case(text) == text && lower_case_of(text) != text;
  if (call.name == "islower") return lower_case_of(text) == text && upper_case(text) != text;
  bool all = !text.empty();
  for_each_character(text, [&](char32_t c, std::size_t, std::string_view) {
    const bool digit = is_numeric(c), letter = !digit && c != U'_' && is_alphanumeric(c) && !is_mark(c);
    all = all && ((call.name != "isalpha" && digit) || (call.name != "isdigit" && letter));
  });
  return all;
}

// items, keys, values
Value entries(const Call& call) {
  List all;
  call.budget.create(3 * sizeof(Value) * call.value.dict()->size());
  for (const auto& [key, value] : *call.value.dict())
    all.push_back(call.name == "items" ? Value::tuple({key, value}) : call.name == "keys" ? key : value);
  return all;
}
Value get(const Call& call) {
  const Value* value = find(*call.value.dict(), call.arguments.need(0, "key", "get"));
  return value ? *value : call.argument(1, "default");
}

// count, index
Value search_list(const Call& call) {
  const List& items = *call.value.list();
  const Value& item = call.arguments.need(0, "value", call.name);
  if (call.name == "count")
    return std::int64_t{std::ranges::count_if(items, [&](const Value& x) { return equal(x, item); })};
  const auto found = std::ranges::find_if(items, [&](const Value& x) { return equal(x, item); });
  if (found == items.end()) throw ValueError("index() does not find the item");
  return std::int64_t{found - items.begin()};
}

Value cycle(const Call& call) {
  const List& items = call.arguments.positional;
  if (items.empty()) throw ValueError("loop.cycle() needs an argument");
  const std::int64_t at = std::get<Namespace*>(call.value.data)->find("index0")->need_integer("loop.index0");
  return items[static_cast<std::size_t>(at) % items.size()];
}

constexpr FunctionRow string_methods[] = {
    {"strip", strip},          {"lstrip", strip},
    {"rstrip", strip},         {"startswith", affix},
    {"endswith", affix},       {"removeprefix", without_affix},
    {"split", split},          {"removesuffix", without_affix},
    {"rsplit", split},         {"splitlines", splitlines},
    {"replace", as_filter},    {"upper", as_filter},
    {"lower", as_filter},      {"title", title_case},
    {"capitalize", as_filter}, {"join", join_with},
    {"find", search},          {"rfind", search},
    {"count", search},         {"isdigit", is_all},
    {"isspace", is_all},       {"isupper", is_all},
    {"islower", is_all},       {"isalpha", is_all},
    {"isalnum", is_all},
};
constexpr FunctionRow dict_methods[] = {{"items", entries}, {"keys", entries}, {"values", entries}, {"get", get}};
constexpr FunctionRow list_methods[] = {{"count", search_list}, {"index", search_list}};
constexpr FunctionRow loop_methods[] = {{"cycle", cycle}};

std::span<const FunctionRow> methods_of(const Value& self) {
  if (self.is_string()) return string_methods;
  if (self.dict()) return dict_methods;
  if (self.list()) return list_methods;
  const auto* space = std::get_if<Namespace*>(&self.data);
  return space && (*space)->is_loop ? std::span<const FunctionRow>(loop_methods) : std::span<const FunctionRow>();
}

}  // namespace

bool is_method(const Value& self, std::string_view name) {
  return std::ranges::any_of(methods_of(self), [&](const FunctionRow& m) { return m.name == name; });
}

Value call_method(const Value& self, const std::string& name, const Arguments& arguments, Budget& budget) {
  for (const FunctionRow& method : methods_of(self))
    if (method.name == name) {
      if (self.is_string()) budget.create(self.string()->size());
      return method.call({self, name, arguments, budget});
    }
  throw ValueError(fmt::format("{} has no method '{}'", type_name(self), name));
}

}  // namespace sy::templates
