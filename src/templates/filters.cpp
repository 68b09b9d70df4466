// Filters, as jinja2/filters.py.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/templates/functions.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"
#include "src/tokenizers/unicode.h"

namespace sy::templates {

const Value* Arguments::find(std::size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}
const Value& Arguments::need(std::size_t position, std::string_view name, std::string_view function) const {
  if (const Value* value = find(position, name)) return *value;
  throw ValueError(fmt::format("{} needs the argument '{}'", function, name));
}

namespace {

const Value& need(const Call& call, std::size_t position, std::string_view name) {
  return call.arguments.need(position, name, "filter " + call.name);
}

Value length(const Call& call) {
  return length_of(call.value);
}
Value capitalize(const Call& call) {
  const std::string text = text_of(call.value);
  const std::size_t first = text.empty() ? 0 : character_at(text, 0).size;
  return upper_case(text.substr(0, first)) + lower_case_of(text.substr(first));
}
Value title(const Call& call) {
  const std::string text = text_of(call.value);
  std::string out;
  bool begins = true;
  for (const std::string_view c : characters_of(text)) {
    out += begins ? upper_case(c) : lower_case_of(c);
    begins = stripped(c, true, true).empty() || std::string_view("-({[<").find(c) != std::string_view::npos;
  }
  return out;
}
Value string(const Call& call) {
  return text_of(call.value);
}

Value default_value(const Call& call) {
  const bool also_false = truth(call.argument(1, "boolean", false));
  if (!call.value.is_undefined() && !(also_false && !truth(call.value))) return call.value;
  return call.argument(0, "default_value", Value(std::string()));
}

Value tojson(const Call& call) {
  JsonStyle style;
  style.ascii = truth(call.argument(0, "ensure_ascii", false));
  if (const Value indent = call.argument(1, "indent"); !indent.is<None>()) {
    style.indent = static_cast<int>(std::clamp<std::int64_t>(indent.need_integer("indent"), 0, 64));
    style.item_separator = ",";
  }
  if (const Value separators = call.argument(2, "separators"); separators.list() && separators.list()->size() == 2) {
    style.item_separator = separators.list()->at(0).need_string("a separator");
    style.key_separator = separators.list()->at(1).need_string("a separator");
  }
  style.sort_keys = truth(call.argument(3, "sort_keys", false));
  std::string text = json_of(call.value, style);
  call.budget.create(text.size());
  return text;
}

// Returns the attribute "a.b" of an item, of Jinja's filters.
Value path_of(const Value& item, const Value& attribute) {
  if (!attribute.is_string()) return item_of(item, attribute);
  Value value = item;
  std::string_view rest = *attribute.string();
  while (true) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string name(rest.substr(0, dot));
    const auto index = parse_number<std::int64_t>(name);
    value = index ? item_of(value, *index) : item_of(value, Value(name));
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

Value join_items(const Call& call) {
  const std::string separator = text_of(call.argument(0, "d", Value(std::string())));
  const Value attribute = call.argument(1, "attribute");
  std::string text;
  bool first = true;
  for (const Value& item : call.items()) {
    const std::string item_text = text_of(attribute.is<None>() ? item : path_of(item, attribute));
    call.budget.create(item_text.size() + separator.size());
    text += (std::exchange(first, false) ? "" : separator) + item_text;
  }
  return text;
}

// first, last
Value end_item(const Call& call) {
  if (const auto* generator = std::get_if<Generator>(&call.value.data); generator && call.name == "first") {
    const Value* const item = generator->visit();
    return item ? *item : Value::undefined("first item");
  }
  const List items = call.items();
  if (items.empty()) return Value::undefined("No " + call.name + " item, sequence was empty.");
  return call.name == "first" ? items.front() : items.back();
}

Value reverse(const Call& call) {
  List items = call.items();
  std::ranges::reverse(items);
  if (!call.value.is_string()) return Value::generator(std::move(items));
  std::string text;
  for (const Value& c : items) text += *c.string();
  return text;
}

// sort, dictsort, min, max: strings are compared without case.
Value sort_key(const Value& value) {
  return value.is_string() ? Value(lower_case_of(*value.string())) : value;
}
// Items whose keys differ from those before.
Value unique(const Call& call) {
  const bool exact = truth(call.argument(0, "case_sensitive", false));
  const Value attribute = call.argument(1, "attribute");
  List all, keys;
  for (Value& item : call.items()) {
    call.budget.step();
    const Value value = attribute.is<None>() ? item : path_of(item, attribute);
    Value key = exact ? value : sort_key(value);
    const auto same = [&](const Value& other) {
      call.budget.step();
      return equal(key, other);
    };
    if (std::ranges::any_of(keys, same)) continue;
    keys.push_back(std::move(key));
    all.push_back(std::move(item));
  }
  return Value::generator(std::move(all));
}
void sort_items(List& items, const Value& attribute, bool reversed, bool exact) {
  const auto key = [&](const Value& item) {
    const Value value = attribute.is<None>() ? item : path_of(item, attribute);
    return exact ? value : sort_key(value);
  };
  std::ranges::stable_sort(items, [&](const Value& a, const Value& b) {
    return reversed ? compare(key(b), key(a)) < 0 : compare(key(a), key(b)) < 0;
  });
}
Value sort(const Call& call) {
  List items = call.items();
  sort_items(items, call.argument(2, "attribute"), truth(call.argument(0, "reverse", false)),
             truth(call.argument(1, "case_sensitive", false)));
  return items;
}
Value dictsort(const Call& call) {
  List items = *call_method(call.value, "items", {}, call.budget).list();
  const Value by = call.argument(1, "by", Value(std::string("key")));
  sort_items(items, std::int64_t{by.is_string() && *by.string() == "value"}, truth(call.argument(2, "reverse", false)),
             truth(call.argument(0, "case_sensitive", false)));
  return items;
}
Value extreme(const Call& call) {
  List items = call.items();
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  sort_items(items, call.argument(1, "attribute"), false, truth(call.argument(0, "case_sensitive", false)));
  if (call.name == "min") return items.front();
  return *std::ranges::find_if(items, [&](const Value& item) {  // the first of the largest ones
    return compare(sort_key(item), sort_key(items.back())) == 0;
  });
}
Value sum(const Call& call) {
  Value total = call.argument(1, "start", std::int64_t{0});
  const Value attribute = call.argument(0, "attribute");
  for (const Value& item : call.items())
    total = binary_operation("+", total, attribute.is<None>() ? item : path_of(item, attribute), call.budget);
  return total;
}

// select, reject, selectattr, rejectattr
Value select(const Call& call) {
  const bool by_attribute = call.name.ends_with("attr"), wanted = call.name.starts_with("select");
  const std::size_t first = by_attribute ? 1 : 0;
  const std::vector<Value>& positional = call.arguments.positional;
  Arguments rest;
  if (positional.size() > first + 1)
    rest.positional.assign(positional.begin() + static_cast<std::ptrdiff_t>(first) + 1, positional.end());
  List all;
  for (Value& item : call.items()) {
    call.budget.step();
    const Value value = by_attribute ? path_of(item, need(call, 0, "attribute")) : item;
    const bool found = positional.size() > first
                           ? apply_test(positional[first].need_string("the name of a test"), value, rest)
                           : truth(value);
    if (found == wanted) all.push_back(std::move(item));
  }
  return Value::generator(std::move(all));
}

Value map_items(const Call& call) {
  List all;
  const std::vector<Value>& positional = call.arguments.positional;
  Arguments rest{{}, call.arguments.named};
  if (positional.size() > 1) rest.positional.assign(positional.begin() + 1, positional.end());
  const Value* attribute = positional.empty() ? call.arguments.find(0, "attribute") : nullptr;
  for (const Value& item : call.items()) {
    call.budget.step();
    if (!attribute) {
      all.push_back(apply_filter(need(call, 0, "name").need_string("the name of a filter"), item, rest, call.budget));
      continue;
    }
    Value value = path_of(item, *attribute);
    all.push_back(value.is_undefined() ? call.argument(1, "default", value) : std::move(value));
  }
  return Value::generator(std::move(all));
}

Value replace(const Call& call) {
  std::string text = text_of(call.value);
  const std::string from = text_of(need(call, 0, "old")), to = text_of(need(call, 1, "new"));
  const Value count = call.argument(2, "count");
  std::int64_t rest = count.is<None>() ? -1 : count.need_integer("count");
  if (from.empty()) throw ValueError("replace needs a text to replace");
  std::string out;
  std::size_t at = 0;
  for (std::size_t found = text.find(from); found != text.npos && rest != 0; found = text.find(from, at), --rest) {
    call.budget.create(found - at + to.size());
    out.append(text, at, found - at) += to;
    at = found + from.size();
  }
  call.budget.create(text.size());
  return out.append(text, at);
}

Value indent(const Call& call) {
  const Value width = call.argument(0, "width", std::int64_t{4});
  const std::string blanks =
      width.is_string()
          ? *width.string()
          : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(width.need_integer("width"), 0, 1000)), ' ');
  const bool first = truth(call.argument(1, "first", false)), blank = truth(call.argument(2, "blank", false));
  const std::string text = text_of(call.value) + '\n';
  std::string out;
  bool begins = true;
  for (const std::string_view line : lines_of(text, false)) {
    if (!begins) out += '\n';
    if (begins ? first : blank || !line.empty()) out += blanks;
    call.budget.create(blanks.size() + line.size() + 1);
    out += line;
    begins = false;
  }
  return out;
}

Value to_int(const Call& call) {
  if (call.arguments.find(1, "base")) throw ValueError("the base of the filter 'int' is not supported");
  const Value otherwise = call.argument(0, "default", std::int64_t{0});
  if (call.value.is<double>()) {
    const double x = call.value.number();
    if (!(std::abs(x) < 0x1p63)) throw ValueError("a number has more than 64 bits");
    return static_cast<std::int64_t>(x);
  }
  if (call.value.is_number()) return call.value.need_integer("a number");
  if (!call.value.is_string()) return otherwise;
  std::string_view text = stripped(*call.value.string(), true, true);
  if (text.starts_with('+')) text.remove_prefix(1);
  if (const auto integer = parse_number<std::int64_t>(text)) return *integer;
  const auto real = parse_number<double>(text);
  return real && std::abs(*real) < 0x1p63 ? Value(static_cast<std::int64_t>(*real)) : otherwise;
}
Value to_float(const Call& call) {
  if (call.value.is_number()) return call.value.number();
  const auto real = call.value.is_string() ? parse_number<double>(stripped(*call.value.string(), true, true))
                                           : std::optional<double>();
  return real ? Value(*real) : call.argument(0, "default", 0.0);
}
Value absolute(const Call& call) {
  if (!call.value.is_number()) throw ValueError(fmt::format("abs is not possible for {}", type_name(call.value)));
  return call.value.number() < 0 ? binary_operation("-", std::int64_t{0}, call.value, call.budget) : call.value;
}

Value items(const Call& call) {
  return Value::generator(call.value.is_undefined() ? List()
                                                    : *call_method(call.value, "items", {}, call.budget).list());
}
// An attribute, but no item of a dict.
Value attribute(const Call& call) {
  const std::string& name = need(call, 0, "name").need_string("the name of an attribute");
  return call.value.dict() && !is_method(call.value, name) ? Value::undefined(name) : attribute_of(call.value, name);
}
Value escape(const Call& call) {
  std::string text = text_of(call.value);
  for (const auto& [from, to] :
       {std::pair{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}})
    replace_all(text, from, to);
  return text;
}

constexpr FunctionRow filters[] = {
    {"trim",
     [](const Call& call) { return call_method(Value(text_of(call.value)), "strip", call.arguments, call.budget); }},
    {"length", length},
    {"count", length},
    {"upper", [](const Call& call) -> Value { return upper_case(text_of(call.value)); }},
    {"lower", [](const Call& call) -> Value { return lower_case_of(text_of(call.value)); }},
    {"title", title},
    {"capitalize", capitalize},
    {"string", string},
    {"default", default_value},
    {"d", default_value},
    {"tojson", tojson},
    {"join", join_items},
    {"first", end_item},
    {"last", end_item},
    {"list", [](const Call& call) -> Value { return call.items(); }},
    {"reverse", reverse},
    {"unique", unique},
    {"sort", sort},
    {"dictsort", dictsort},
    {"min", extreme},
    {"max", extreme},
    {"sum", sum},
    {"select", select},
    {"reject", select},
    {"selectattr", select},
    {"rejectattr", select},
    {"map", map_items},
    {"replace", replace},
    {"indent", indent},
    {"int", to_int},
    {"float", to_float},
    {"abs", absolute},
    {"items", items},
    {"attr", attribute},
    {"safe", string},
    {"escape", escape},
    {"e", escape},
};

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget) {
  const auto filter = std::ranges::find(filters, std::string_view(name), &FunctionRow::name);
  if (filter == std::end(filters)) throw ValueError(fmt::format("the filter '{}' is not supported", name));
  if (value.is_string()) budget.create(value.string()->size());
  return filter->call({value, name, arguments, budget});
}

}  // namespace sy::templates
