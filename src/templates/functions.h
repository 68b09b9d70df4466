// Filters, tests, methods and functions of templates.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/templates/template.h"
#include "src/templates/value.h"

namespace sy::templates {

// Counts the work of a rendering. Throws ValueError at a limit.
class Budget {
 public:
  explicit Budget(const TemplateLimits& limits) : limits_(limits) {}
  void step() {
    if (++steps_ > limits_.steps) throw ValueError("the template takes too many steps");
  }
  // Call it before a value of about `bytes` is created.
  void create(std::size_t bytes) {
    created_ += static_cast<Index>(std::min<std::size_t>(bytes, std::size_t{1} << 40));
    if (created_ > limits_.created_bytes) throw ValueError("the template needs too much memory");
  }
  void output(std::size_t bytes) const {
    if (static_cast<Index>(bytes) > limits_.output_bytes)
      throw ValueError(std::to_string(limits_.output_bytes) + " bytes of text are exceeded");
  }

 private:
  TemplateLimits limits_;
  Index steps_ = 0, created_ = 0;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Returns the argument at a position or of a name; nullptr if there is none.
  const Value* find(std::size_t position, std::string_view name) const;
  // Throws ValueError if there is none. function: of the message.
  const Value& need(std::size_t position, std::string_view name, std::string_view function) const;
};

// Call of a filter or of a method of a value.
struct Call {
  const Value& value;
  const std::string& name;
  const Arguments& arguments;
  Budget& budget;
  Value argument(std::size_t position, std::string_view of, const Value& otherwise = None{}) const {
    const Value* found = arguments.find(position, of);
    return found ? *found : otherwise;
  }
  const std::string& text() const { return *value.string(); }  // of a string
  List items() const {
    budget.create(sizeof(Value) * static_cast<std::size_t>(most_items(value)));
    return items_of(value);
  }
};
// A filter or a method, in a table.
struct FunctionRow {
  std::string_view name;
  Value (*call)(const Call&);
};

// These throw ValueError if the name is unknown, or the value has another type.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
bool is_method(const Value& self, std::string_view name);
Value call_method(const Value& self, const std::string& name, const Arguments& arguments, Budget& budget);

// x.name and x[key]. An absent attribute or item is undefined. Throws ValueError if x is undefined.
Value attribute_of(const Value& x, const std::string& name);
Value item_of(const Value& x, const Value& key);
// x[begin:end:step]. Bounds that are none are absent.
Value slice_of(const Value& x, const Value& begin, const Value& end, const Value& step, Budget& budget);
// + - * / // % ** ~
Value binary_operation(std::string_view symbol, const Value& a, const Value& b, Budget& budget);

}  // namespace sy::templates
