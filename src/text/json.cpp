#include "src/text/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

namespace sy {
namespace {

// Levels of nesting. Values are written and destroyed recursively.
constexpr std::size_t deepest = 1000;

// Parser callbacks that build the value.
class Builder {
 public:
  Json root;
  std::string error;

  bool null() { return add({}); }
  bool boolean(bool x) { return add(x); }
  bool number_integer(std::int64_t x) { return add(x); }
  bool number_unsigned(std::uint64_t x) { return add(x); }
  bool number_float(double x, const std::string&) { return add(x); }
  bool string(std::string& x) { return add(std::move(x)); }
  bool binary(std::vector<std::uint8_t>&) { return false; }  // never occurs in text
  bool key(std::string& x) {
    key_ = std::move(x);
    return true;
  }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    error = fmt::format("not JSON from its byte {} on", position == 0 ? 0 : position - 1);
    return false;
  }

 private:
  Json& put(Json value) {
    if (open_.empty()) return root = std::move(value);
    Json& in = *open_.back();
    return in.is_array() ? in.push_back(std::move(value)) : in.append(std::move(key_), std::move(value));
  }
  bool add(Json value) {
    put(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == deepest) {
      error = fmt::format("JSON nested more than {} deep", deepest);
      return false;
    }
    open_.push_back(&put(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  std::vector<Json*> open_;  // open arrays and objects, outermost first
  std::string key_;
};

std::string parse_into(Json& json, std::string_view text) {
  Builder builder;
  if (!nlohmann::json::sax_parse(text, &builder)) return builder.error;
  json = std::move(builder.root);
  return "";
}

void write_string(std::string& out, const std::string& text) {
  out += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Json::Json() = default;
Json::Json(bool value) : value_(value) {}
Json::Json(double value) : value_(value) {}
Json::Json(std::string value) : value_(std::move(value)) {}
Json::Json(std::initializer_list<Member> members) : value_(Object(members)) {}
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(Json other) noexcept {
  value_ = std::move(other.value_);
  return *this;
}
Json::~Json() = default;

Json Json::array(Array elements) {
  Json json;
  json.value_ = std::move(elements);
  return json;
}
Json Json::object() {
  Json json;
  json.value_ = Object();
  return json;
}
Json Json::of(std::int64_t value) {
  Json json;
  json.value_ = value;
  return json;
}
Json Json::of(std::uint64_t value) {
  if (value <= INT64_MAX) return of(static_cast<std::int64_t>(value));
  Json json;
  json.value_ = value;
  return json;
}

Json Json::parse(std::string_view text) {
  Json json;
  if (const std::string error = parse_into(json, text); !error.empty()) throw JsonError(error);
  return json;
}
std::optional<Json> Json::try_parse(std::string_view text) {
  Json json;
  if (!parse_into(json, text).empty()) return {};
  return json;
}

const char* Json::type_name() const {
  static constexpr const char* names[] = {"null", "boolean", "number", "number", "number", "string", "array", "object"};
  return names[value_.index()];
}

template <class T>
const T& Json::held(const char* what) const {
  if (const T* value = std::get_if<T>(&value_)) return *value;
  throw JsonError(fmt::format("{} where {} is expected", type_name(), what));
}

template <>
bool Json::get() const {
  return held<bool>("true or false");
}
template <>
double Json::get() const {
  if (const auto* integer = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*integer);
  if (const auto* integer = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*integer);
  return held<double>("a number");
}
template <>
std::int64_t Json::get() const {
  if (const auto* number = std::get_if<double>(&value_);
      number && *number == std::floor(*number) && std::abs(*number) < 0x1p53)
    return static_cast<std::int64_t>(*number);  // accepts 12.0, since some programs write 12 so
  return held<std::int64_t>("a whole number of 63 bits");
}
template <>
std::uint64_t Json::get() const {
  if (const auto* integer = std::get_if<std::int64_t>(&value_); integer && *integer >= 0)
    return static_cast<std::uint64_t>(*integer);
  return held<std::uint64_t>("a whole number that is not negative");
}
template <>
std::string Json::get() const {
  return held<std::string>("a string");
}
std::string Json::take_string() {
  held<std::string>("a string");
  return std::move(std::get<std::string>(value_));
}

const Json* Json::find(std::string_view key) const {
  const Object* object = std::get_if<Object>(&value_);
  if (!object) return nullptr;
  const auto member = std::find_if(object->rbegin(), object->rend(), [&](const Member& m) { return m.name == key; });
  return member == object->rend() ? nullptr : &member->value;
}
const Json& Json::at(std::string_view key) const {
  if (const Json* value = find(key)) return *value;
  throw JsonError(is_object() ? fmt::format("no key '{}'", key)
                              : fmt::format("{} where an object with the key '{}' is expected", type_name(), key));
}
Json& Json::operator[](std::string_view key) {
  if (const Json* value = find(key)) return const_cast<Json&>(*value);
  return append(std::string(key), {});
}
Json& Json::append(std::string key, Json value) {
  if (is_null()) value_ = Object();
  held<Object>("an object");
  Object& object = std::get<Object>(value_);
  object.push_back({std::move(key), std::move(value)});
  return object.back().value;
}
const Json::Object& Json::members() const {
  return held<Object>("an object");
}

const Json& Json::at(std::size_t i) const {
  if (i < elements().size()) return elements()[i];
  throw JsonError(fmt::format("an array of {} where more is expected", size()));
}
const Json::Array& Json::elements() const {
  return held<Array>("an array");
}
Json& Json::push_back(Json element) {
  if (is_null()) value_ = Array();
  held<Array>("an array");
  return std::get<Array>(value_).emplace_back(std::move(element));
}

std::size_t Json::size() const {
  return is_array() ? elements().size() : is_object() ? members().size() : 0;
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, indent, 0);
  return out;
}

void Json::write(std::string& out, int indent, int depth) const {
  const auto list = [&](char open, char close, const auto& items, const auto& write_item) {
    const auto new_line = [&](int level) {
      if (indent >= 0)
        out.append(1, '\n').append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(level), ' ');
    };
    out += open;
    for (const auto& item : items) {
      if (&item != items.data()) out += ',';
      new_line(depth + 1);
      write_item(item);
    }
    if (!items.empty()) new_line(depth);
    out += close;
  };
  if (is_array()) {
    list('[', ']', elements(), [&](const Json& element) { element.write(out, indent, depth + 1); });
  } else if (is_object()) {
    list('{', '}', members(), [&](const Member& member) {
      write_string(out, member.name);
      out += indent >= 0 ? ": " : ":";
      member.value.write(out, indent, depth + 1);
    });
  } else if (is_string()) {
    write_string(out, std::get<std::string>(value_));
  } else if (const auto* number = std::get_if<double>(&value_)) {
    out += nlohmann::json(*number).dump();
  } else if (const auto* integer = std::get_if<std::int64_t>(&value_)) {
    out += std::to_string(*integer);
  } else if (const auto* natural = std::get_if<std::uint64_t>(&value_)) {
    out += std::to_string(*natural);
  } else if (const auto* truth = std::get_if<bool>(&value_)) {
    out += *truth ? "true" : "false";
  } else {
    out += "null";
  }
}

bool operator==(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return a.value_ == b.value_;
  return a.size() == b.size() && std::all_of(a.members().begin(), a.members().end(), [&](const Json::Member& m) {
           const Json* other = b.find(m.name);
           return other && m.value == *other;
         });
}

std::ostream& operator<<(std::ostream& out, const Json& json) {
  return out << json.dump();
}

std::optional<double> number_at(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
}

std::optional<std::int64_t> integer_at(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value && value->is_integer() ? std::optional(value->get<std::int64_t>()) : std::nullopt;
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

std::string standard_json(std::string_view text) {
  constexpr std::pair<std::string_view, std::string_view> constants[] = {{"Infinity", "1.7976931348623157e308"},
                                                                         {"NaN", "null"}};
  std::string out;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto constant = std::find_if(std::begin(constants), std::end(constants),
                                       [&](const auto& c) { return !quoted && text.substr(at).starts_with(c.first); });
    if (constant != std::end(constants)) {
      out += constant->second;
      at += constant->first.size();
      continue;
    }
    if (text[at] == '"') quoted = !quoted;
    const std::size_t bytes = quoted && text[at] == '\\' ? 2 : 1;
    out += text.substr(at, bytes);
    at += bytes;
  }
  return out;
}

std::string json_text(const Json& json, int indent) {
  return json.dump(indent) + '\n';
}

}  // namespace sy
