// Tests, as jinja2/tests.py.
#include <fmt/format.h>

#include <algorithm>

#include "src/templates/functions.h"

namespace sy::templates {
namespace {

using Test = bool (*)(const Value& x, const Arguments& arguments);

const Value& other(const Arguments& arguments) {
  return arguments.need(0, "other", "the test");
}
std::int64_t rest_of_two(const Value& x) {
  return x.need_integer("the number") & 1;
}

constexpr std::pair<std::string_view, Test> tests[] = {
    {"defined", [](const Value& x, const Arguments&) { return !x.is_undefined(); }},
    {"undefined", [](const Value& x, const Arguments&) { return x.is_undefined(); }},
    {"none", [](const Value& x, const Arguments&) { return x.is<None>(); }},
    {"string", [](const Value& x, const Arguments&) { return x.is_string(); }},
    {"mapping", [](const Value& x, const Arguments&) { return x.dict() != nullptr; }},
    {"sequence",
     [](const Value& x, const Arguments&) { return x.is_string() || x.list() || x.dict() || x.is_undefined(); }},
    {"iterable",
     [](const Value& x, const Arguments&) {
       return x.is_string() || x.list() || x.dict() || x.is_undefined() || x.is<Generator>();
     }},
    {"number", [](const Value& x, const Arguments&) { return x.is_number(); }},
    {"integer", [](const Value& x, const Arguments&) { return x.is<std::int64_t>(); }},
    {"float", [](const Value& x, const Arguments&) { return x.is<double>(); }},
    {"boolean", [](const Value& x, const Arguments&) { return x.is<bool>(); }},
    {"true", [](const Value& x, const Arguments&) { return x.is<bool>() && truth(x); }},
    {"false", [](const Value& x, const Arguments&) { return x.is<bool>() && !truth(x); }},
    {"callable", [](const Value& x, const Arguments&) { return x.is<Function>() || x.is<const Macro*>(); }},
    {"odd", [](const Value& x, const Arguments&) { return rest_of_two(x) == 1; }},
    {"even", [](const Value& x, const Arguments&) { return rest_of_two(x) == 0; }},
    {"divisibleby",
     [](const Value& x, const Arguments& a) {
       const std::int64_t by = other(a).need_integer("the divisor");
       if (by == 0) throw ValueError("division by zero");
       return by == -1 || x.need_integer("the number") % by == 0;
     }},
    {"lower",
     [](const Value& x, const Arguments&) {
       return lower_case_of(text_of(x)) == text_of(x) && upper_case(text_of(x)) != text_of(x);
     }},
    {"upper",
     [](const Value& x, const Arguments&) {
       return upper_case(text_of(x)) == text_of(x) && lower_case_of(text_of(x)) != text_of(x);
     }},
    {"in", [](const Value& x, const Arguments& a) { return contains(other(a), x); }},
    {"sameas",
     [](const Value& x, const Arguments& a) { return x.data.index() == other(a).data.index() && equal(x, other(a)); }},
    {"eq", [](const Value& x, const Arguments& a) { return equal(x, other(a)); }},
    {"equalto", [](const Value& x, const Arguments& a) { return equal(x, other(a)); }},
    {"==", [](const Value& x, const Arguments& a) { return equal(x, other(a)); }},
    {"ne", [](const Value& x, const Arguments& a) { return !equal(x, other(a)); }},
    {"!=", [](const Value& x, const Arguments& a) { return !equal(x, other(a)); }},
    {"lt", [](const Value& x, const Arguments& a) { return compare(x, other(a)) < 0; }},
    {"le", [](const Value& x, const Arguments& a) { return compare(x, other(a)) <= 0; }},
    {"gt", [](const Value& x, const Arguments& a) { return compare(x, other(a)) > 0; }},
    {"ge", [](const Value& x, const Arguments& a) { return compare(x, other(a)) >= 0; }},
};

}  // namespace

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto test = std::ranges::find_if(tests, [&](const auto& t) { return t.first == name; });
  if (test == std::end(tests)) throw ValueError(fmt::format("the test '{}' is not supported", name));
  return test->second(value, arguments);
}

}  // namespace sy::templates
