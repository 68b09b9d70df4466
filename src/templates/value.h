// Values of template expressions.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/text/json.h"

namespace sy::templates {

// Thrown for a wrong operation. The renderer adds the template's name and the line.
struct ValueError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Value;
struct Namespace;
struct Macro;

using List = std::vector<Value>;
using Dict = std::vector<std::pair<Value, Value>>;  // in order of insertion

struct Undefined {
  std::string name;  // of the variable, attribute or item
};
struct None {};
struct Tuple {
  std::shared_ptr<const List> items;
};
// The result of a filter such as select. Its items can be visited once, as those of Python's
// generators. It is always true, and has no length.
struct Generator {
  std::shared_ptr<const List> items;
  // Number of visited items.
  std::shared_ptr<std::size_t> next = std::make_shared<std::size_t>(0);
  const Value* visit() const;  // the next item; nullptr after the last
};
// A method of a value, or a function of the environment if `self` is empty.
struct Function {
  std::shared_ptr<const Value> self;
  std::string name;
};

// An immutable value. Copies share strings, lists and dicts. The renderer owns namespaces and
// macros, so that no cycle of owners exists.
class Value {
 public:
  using String = std::shared_ptr<const std::string>;
  std::variant<Undefined, None, bool, std::int64_t, double, String, std::shared_ptr<const List>, Tuple,
               std::shared_ptr<const Dict>, Namespace*, const Macro*, Function, Generator>
      data = None{};

  Value() = default;
  explicit Value(const Json& json);
  template <class T>
  requires(!std::is_same_v<T, Json> && !std::is_same_v<T, Value>) Value(T value) : data(std::move(value)) {}
  Value(const char*) = delete;
  Value(std::string text) : data(std::make_shared<const std::string>(std::move(text))) {}
  Value(List items) : data(std::make_shared<const List>(std::move(items))) {}
  Value(Dict items) : data(std::make_shared<const Dict>(std::move(items))) {}
  static Value undefined(std::string name) { return Value(Undefined{std::move(name)}); }
  static Value tuple(List items) { return Value(Tuple{std::make_shared<const List>(std::move(items))}); }
  static Value generator(List items) { return Value(Generator{std::make_shared<const List>(std::move(items))}); }

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_string() const { return is<String>(); }
  bool is_number() const { return is<bool>() || is<std::int64_t>() || is<double>(); }
  // These return nullptr if it is another type.
  const std::string* string() const { return shared<std::string>(); }
  const List* list() const { return is<Tuple>() ? std::get<Tuple>(data).items.get() : shared<List>(); }
  const Dict* dict() const { return shared<Dict>(); }
  // Throws ValueError that names `what` if it is another type.
  const std::string& need_string(std::string_view what) const;
  std::int64_t need_integer(std::string_view what) const;  // of an integer or a boolean
  double number() const;                                   // of is_number()

 private:
  template <class T>
  const T* shared() const {
    const auto* value = std::get_if<std::shared_ptr<const T>>(&data);
    return value ? value->get() : nullptr;
  }
};

// An object with attributes that `set` changes, or the `loop` of a for statement.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  bool is_loop = false;
  const Value* find(std::string_view name) const;  // nullptr if absent
  void set(std::string_view name, Value value);
};

const char* type_name(const Value& value);  // "a string", "a list"
bool truth(const Value& value);
bool equal(const Value& a, const Value& b, int depth = 0);
// Returns the order of two numbers, strings or lists: below 0, 0 or above 0. Throws ValueError.
int compare(const Value& a, const Value& b, int depth = 0);
// Returns whether the item occurs in a string, list or dict. Undefined contains nothing.
bool contains(const Value& container, const Value& item);
const Value* find(const Dict& dict, const Value& key);  // nullptr if absent
void set_item(Dict& dict, Value key, Value value);      // replaces the value of an equal key

// Returns the text as {{ value }} prints it. Undefined gives "".
std::string text_of(const Value& value);
// Returns the text as Python's repr() writes it.
std::string repr(const Value& value, int depth = 0);
struct JsonStyle {
  int indent = -1;  // -1: one line
  bool ascii = false, sort_keys = false;
  std::string item_separator = ", ", key_separator = ": ";
};
// Returns the text of Python's json.dumps. Throws ValueError for values that JSON lacks.
std::string json_of(const Value& value, const JsonStyle& style, int depth = 0);

// Returns the items that a for statement visits: of a list, the keys of a dict, the characters of a
// string, and those of a generator that were not visited. Undefined has none. Throws ValueError for
// other values.
List items_of(const Value& value);
// Returns an upper bound of their number. Throws ValueError likewise.
std::int64_t most_items(const Value& value);
std::int64_t length_of(const Value& value);  // of characters, items or keys. Throws ValueError.

// Strings are UTF-8, and positions count characters.
std::vector<std::string_view> characters_of(std::string_view text);
std::string_view stripped(std::string_view text, bool left, bool right);  // Python's white space
// Lines of a text, as Python's splitlines(). keep_ends: each line includes its end.
std::vector<std::string_view> lines_of(std::string_view text, bool keep_ends);
std::string upper_case(std::string_view text);
std::string lower_case_of(std::string_view text);

}  // namespace sy::templates
