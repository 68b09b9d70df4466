#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/templates/functions.h"

namespace sy::templates {
namespace {

[[noreturn]] void undefined_error(const Value& value) {
  throw ValueError(fmt::format("'{}' is undefined", std::get<Undefined>(value.data).name));
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

Value power(const Value& a, const Value& b) {
  if (a.is<double>() || b.is<double>() || b.need_integer("an exponent") < 0) return std::pow(a.number(), b.number());
  std::int64_t result = 1;
  const std::int64_t base = a.need_integer("a base");
  const std::int64_t exponent = b.need_integer("an exponent");
  if (base == 0 || base == 1 || base == -1) return base == -1 ? (exponent % 2 ? -1 : 1) : exponent == 0 ? 1 : base;
  for (std::int64_t i = 0; i < exponent; ++i)
    if (__builtin_mul_overflow(result, base, &result)) throw ValueError("an integer has more than 64 bits");
  return result;
}

Value integer_operation(std::string_view symbol, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  if (symbol == "+")
    overflow = __builtin_add_overflow(a, b, &result);
  else if (symbol == "-")
    overflow = __builtin_sub_overflow(a, b, &result);
  else if (symbol == "*")
    overflow = __builtin_mul_overflow(a, b, &result);
  else if (b == 0)
    throw ValueError("division by zero");
  else if (symbol == "/")
    return static_cast<double>(a) / static_cast<double>(b);
  else if (b == -1)
    overflow = symbol == "//" && __builtin_sub_overflow(std::int64_t{0}, a, &result);
  else
    result = symbol == "//" ? floor_divide(a, b) : a - floor_divide(a, b) * b;
  if (overflow) throw ValueError("an integer has more than 64 bits");
  return result;
}

Value number_operation(std::string_view symbol, const Value& a, const Value& b) {
  if (symbol == "**") return power(a, b);
  if (!a.is<double>() && !b.is<double>())
    return integer_operation(symbol, a.need_integer("a number"), b.need_integer("a number"));
  const double x = a.number(), y = b.number();
  if (symbol == "+") return x + y;
  if (symbol == "-") return x - y;
  if (symbol == "*") return x * y;
  if (y == 0) throw ValueError("division by zero");
  if (symbol == "/") return x / y;
  if (symbol == "//") return std::floor(x / y);
  const double rest = std::fmod(x, y);
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

Value repeated(const Value& value, std::int64_t count, Budget& budget) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  const std::size_t size = value.is_string() ? value.string()->size() : sizeof(Value) * value.list()->size();
  if (size > 0 && times > (std::size_t{1} << 40) / size) budget.create(std::size_t{1} << 40);
  budget.create(size * times);
  if (size == 0) return value;
  if (const std::string* text = value.string()) {
    std::string all;
    for (std::size_t i = 0; i < times; ++i) all += *text;
    return all;
  }
  List all;
  for (std::size_t i = 0; i < times; ++i) all.insert(all.end(), value.list()->begin(), value.list()->end());
  return all;
}

// Limits of Python's slice.indices().
struct Bounds {
  std::int64_t begin, end, step;
};
Bounds bounds_of(std::int64_t size, const Value& begin, const Value& end, const Value& step) {
  const std::int64_t by = step.is<None>() ? 1 : step.need_integer("the step of a slice");
  if (by == 0) throw ValueError("the step of a slice is 0");
  const std::int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto bound = [&](const Value& value, std::int64_t otherwise) {
    if (value.is<None>()) return otherwise;
    const std::int64_t i = value.need_integer("a bound of a slice");
    return std::clamp(i < 0 ? std::max(i, -size - 1) + size : i, low, high);
  };
  return {bound(begin, by > 0 ? low : high), bound(end, by > 0 ? high : low), by};
}

}  // namespace

Value attribute_of(const Value& x, const std::string& name) {
  if (x.is_undefined()) undefined_error(x);
  if (const auto* space = std::get_if<Namespace*>(&x.data))
    if (const Value* value = (*space)->find(name)) return *value;
  if (is_method(x, name)) return Function{std::make_shared<const Value>(x), name};
  if (const Dict* dict = x.dict())
    if (const Value* value = find(*dict, Value(name))) return *value;
  return Value::undefined(name);
}

Value item_of(const Value& x, const Value& key) {
  if (x.is_undefined()) undefined_error(x);
  if (const Dict* dict = x.dict())
    if (const Value* value = find(*dict, key)) return *value;
  if (const std::string* name = key.string()) return attribute_of(x, *name);  // a method of a dict
  const auto* integer = std::get_if<std::int64_t>(&key.data);
  if (!integer || x.dict()) return Value::undefined(x.dict() ? repr(key) : std::string(type_name(key)));
  const std::string* text = x.string();
  if (!text && !x.list()) return Value::undefined(std::to_string(*integer));
  const std::int64_t size = length_of(x), at = *integer < 0 ? *integer + size : *integer;
  if (at < 0 || at >= size) return Value::undefined(std::to_string(*integer));
  if (text) return std::string(characters_of(*text)[static_cast<std::size_t>(at)]);
  return (*x.list())[static_cast<std::size_t>(at)];
}

Value slice_of(const Value& x, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  if (x.is_undefined()) undefined_error(x);
  const std::string* text = x.string();
  if (!text && !x.list()) throw ValueError(fmt::format("{} has no slices", type_name(x)));
  const Bounds b = bounds_of(length_of(x), begin, end, step);
  budget.create(text ? text->size() : sizeof(Value) * x.list()->size());
  const auto for_each = [&](const auto& visit) {
    for (std::int64_t i = b.begin; b.step > 0 ? i < b.end : i > b.end;) {
      visit(static_cast<std::size_t>(i));
      if (__builtin_add_overflow(i, b.step, &i)) break;
    }
  };
  if (text) {
    const std::vector<std::string_view> characters = characters_of(*text);
    std::string slice;
    for_each([&](std::size_t i) { slice += characters[i]; });
    return slice;
  }
  List items;
  for_each([&](std::size_t i) { items.push_back((*x.list())[i]); });
  return x.is<Tuple>() ? Value::tuple(std::move(items)) : Value(std::move(items));
}

Value binary_operation(std::string_view symbol, const Value& a, const Value& b, Budget& budget) {
  if (symbol == "~") {
    std::string text = text_of(a) + text_of(b);
    budget.create(text.size());
    return text;
  }
  for (const Value* x : {&a, &b})
    if (x->is_undefined()) undefined_error(*x);
  if (a.is_number() && b.is_number()) return number_operation(symbol, a, b);
  if (symbol == "+" && a.is_string() && b.is_string()) {
    budget.create(a.string()->size() + b.string()->size());
    return *a.string() + *b.string();
  }
  if (symbol == "+" && a.list() && a.data.index() == b.data.index()) {
    budget.create(sizeof(Value) * (a.list()->size() + b.list()->size()));
    List all = *a.list();
    all.insert(all.end(), b.list()->begin(), b.list()->end());
    return a.is<Tuple>() ? Value::tuple(std::move(all)) : Value(std::move(all));
  }
  if (symbol == "*" && (a.is_string() || a.list()) && b.is<std::int64_t>())
    return repeated(a, b.need_integer("a count"), budget);
  if (symbol == "*" && (b.is_string() || b.list()) && a.is<std::int64_t>())
    return repeated(b, a.need_integer("a count"), budget);
  if (symbol == "%" && a.is_string()) throw ValueError("'%' for strings is not supported: use ~");
  throw ValueError(fmt::format("'{}' is not possible for {} and {}", symbol, type_name(a), type_name(b)));
}

}  // namespace sy::templates
