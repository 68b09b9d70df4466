// Components of tokenizer.json: objects whose "type" names their kind.
// Supported kinds are rows of tables.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/check.h"
#include "src/text/json.h"

namespace sy {

// Describes an invalid component. The reader of the file adds the file name.
class BadComponent : public std::runtime_error {
 public:
  explicit BadComponent(const std::string& what, bool what_names_component = false)
      : std::runtime_error(what), names_component(what_names_component) {}
  bool names_component;
};

// Returns the text of a file for a message, cut to 100 bytes.
inline std::string shown(std::string_view text) {
  constexpr std::size_t most = 100;
  if (text.size() <= most) return std::string(text);
  std::size_t end = most;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

// Throws BadComponent. Long texts among the arguments are cut.
template <class T>
using Shown = std::conditional_t<std::is_convertible_v<const T&, std::string_view>, std::string, const T&>;
template <class... Args>
[[noreturn]] void bad_component(fmt::format_string<Shown<Args>...> format, const Args&... args) {
  [[maybe_unused]] const auto as_shown = []<class T>(const T& x) -> Shown<T> {
    if constexpr (std::is_convertible_v<const T&, std::string_view>)
      return shown(x);
    else
      return x;
  };
  throw BadComponent(fmt::format(format, as_shown(args)...));
}

// Bounds the output of components by the size of the text. check_output_size throws InputError.
constexpr std::size_t max_output_bytes(std::size_t bytes) {
  return 64 * bytes + 4096;
}
inline void check_output_size(std::size_t bytes, std::size_t most) {
  if (bytes > most)
    bad_input("the tokenizer's components make more than {} bytes of a text: remove those that repeat", most);
}

// Returns the value of a key. Without `fallback`, an absent key is an error. With it, an absent
// key or null gives `fallback`.
template <class T>
T value_of(const Json& component, const char* key) {
  try {
    return component.at(key).get<T>();
  } catch (const JsonError& e) {
    throw BadComponent(component.contains(key) ? fmt::format("'{}': {}", key, e.what()) : e.what());
  }
}
template <class T>
T value_of(const Json& component, const char* key, T fallback) {
  const Json* value = component.find(key);
  return !value || value->is_null() ? fallback : value_of<T>(component, key);
}

template <class Made>
struct Kind {
  const char* type;
  Made (*make)(const Json& component);
};

// Makes a component by its "type".
// what: name of the component in messages, for example "normalizer".
template <class Made>
Made make_component(const char* what, const Json& component, std::span<const Kind<Made>> kinds) {
  const std::string type = value_of<std::string>(component, "type");
  for (const Kind<Made>& kind : kinds) {
    if (type != kind.type) continue;
    try {
      return kind.make(component);
    } catch (const BadComponent& e) {
      if (e.names_component) throw;  // of a Sequence's element
      throw BadComponent(fmt::format("{} {}: {}", what, type, e.what()), true);
    } catch (const JsonError& e) {
      throw BadComponent(fmt::format("{} {}: {}", what, type, e.what()), true);
    }
  }
  std::vector<const char*> names;
  for (const Kind<Made>& kind : kinds) names.push_back(kind.type);
  throw BadComponent(
      fmt::format("the {} '{}' is not supported: switchyard has {}", what, shown(type), fmt::join(names, ", ")), true);
}

// A step that changes its argument in place. A Sequence runs steps in order; null is the identity.
template <class T>
using Step = std::function<void(T&)>;

template <class T>
Step<T> make_step(const char* what, const Json& component, std::span<const Kind<Step<T>>> kinds) {
  if (component.is_null()) return [](T&) {};
  return make_component(what, component, kinds);
}

template <class T>
Step<T> sequence_of(const Json& component, const char* key, Step<T> (*make)(const Json&)) {
  std::vector<Step<T>> steps;
  for (const Json& element : component.at(key)) steps.push_back(make(element));
  return [steps](T& x) {
    for (const Step<T>& step : steps) step(x);
  };
}

}  // namespace sy
