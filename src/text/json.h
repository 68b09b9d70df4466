// JSON values, and their reading and writing. The JSON library is included in json.cpp alone,
// because its header takes seconds to compile in every file that includes it.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sy {

// Thrown for text that is not JSON, a value of another type, and a missing key or element.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Json {
 public:
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;  // in order of addition

  Json();  // null
  Json(bool value);
  Json(double value);
  template <std::integral T>
  Json(T value) : Json(of(static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(value))) {}
  Json(std::string value);
  Json(std::string_view value) : Json(std::string(value)) {}
  Json(const char* value) : Json(std::string(value)) {}
  template <class T>
  Json(const std::vector<T>& values) : Json(array(Array(values.begin(), values.end()))) {}
  // An object: {{"step", 3}, {"loss", 1.5}}
  Json(std::initializer_list<Member> members);
  static Json array(Array elements = {});
  static Json object();
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(Json other) noexcept;
  ~Json();

  // Throws JsonError with the position if the text is no JSON, or nested more than 1000 deep.
  static Json parse(std::string_view text);
  static std::optional<Json> try_parse(std::string_view text);

  bool is_null() const { return value_.index() == 0; }
  bool is_number() const { return is_integer() || holds<std::uint64_t>() || holds<double>(); }
  bool is_integer() const { return holds<std::int64_t>(); }  // fits std::int64_t
  bool is_string() const { return holds<std::string>(); }
  bool is_array() const { return holds<Array>(); }
  bool is_object() const { return holds<Object>(); }
  const char* type_name() const;  // "null", "boolean", "number", "string", "array", "object"

  // T: bool, double, std::int64_t, std::uint64_t, std::string, or std::vector of these. Throws
  // JsonError if the value has another type, or is an integer that does not fit.
  template <class T>
  T get() const;
  std::string take_string();  // moves the string out

  // For objects. If a key occurs twice, the last value is used. operator[] adds a missing key, and
  // turns null into an object.
  const Json* find(std::string_view key) const;  // nullptr if there is no such key, or no object
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  const Json& at(std::string_view key) const;
  const Json& operator[](std::string_view key) const { return at(key); }
  Json& operator[](std::string_view key);
  // Appends without a search for the key. Returns the stored value.
  Json& append(std::string key, Json value);
  const Object& members() const;

  // For arrays. push_back turns null into an array.
  const Json& at(std::size_t i) const;
  const Json& operator[](std::size_t i) const { return at(i); }
  const Array& elements() const;
  Array::const_iterator begin() const { return elements().begin(); }
  Array::const_iterator end() const { return elements().end(); }
  Json& push_back(Json element);  // returns the stored element

  std::size_t size() const;  // number of members or elements; 0 for other values
  bool empty() const { return size() == 0; }

  // Returns the text on one line, or with `indent` spaces per level. Invalid UTF-8 (in paths or
  // generated text) becomes U+FFFD; infinity and NaN become null.
  std::string dump(int indent = -1) const;

  friend bool operator==(const Json& a, const Json& b);
  // Prints dump().
  friend std::ostream& operator<<(std::ostream& out, const Json& json);

 private:
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(value_);
  }
  static Json of(std::int64_t value);
  static Json of(std::uint64_t value);
  template <class T>
  const T& held(const char* what) const;
  void write(std::string& out, int indent, int depth) const;

  // Unsigned only if it is too large for std::int64_t, so equal integers have equal types.
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value_;
};

struct Json::Member {
  std::string name;
  Json value;
  friend bool operator==(const Member&, const Member&) = default;
};

template <>
bool Json::get() const;
template <>
double Json::get() const;
template <>
std::int64_t Json::get() const;
template <>
std::uint64_t Json::get() const;
template <>
std::string Json::get() const;

// T: a vector.
template <class T>
T Json::get() const {
  T values;
  for (const Json& element : elements()) values.push_back(element.get<typename T::value_type>());
  return values;
}

// Returns the number at a key of an object. Empty if there is no such key, or no number.
std::optional<double> number_at(const Json& object, std::string_view key);
// The same for an integer that fits std::int64_t.
std::optional<std::int64_t> integer_at(const Json& object, std::string_view key);

// Returns the text; null if it is empty.
Json text_or_null(const std::string& text);

// Returns standard JSON for a text of Python's json module. Infinity becomes the largest double,
// NaN becomes null.
std::string standard_json(std::string_view text);

// Returns the text with a newline at the end.
std::string json_text(const Json& json, int indent = 2);

}  // namespace sy
