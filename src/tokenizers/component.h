// A tokenizer.json is made of components, each an object whose "type" names its kind. The kinds that we have are rows of tables.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/json.h"

namespace sy {

// What is wrong with a component. Who reads the file says which file it is.
class BadComponent : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The value of a key; absent or null, it is `otherwise`, if there is one.
template <class T>
T value_of(const Json& component, const char* key) {
  try {
    return component.at(key).get<T>();
  } catch (const JsonError& e) {
    throw BadComponent(component.contains(key) ? fmt::format("'{}': {}", key, e.what()) : e.what());
  }
}
template <class T>
T value_of(const Json& component, const char* key, T otherwise) {
  const Json* value = component.find(key);
  return !value || value->is_null() ? otherwise : value_of<T>(component, key);
}

template <class Made>
struct Kind {
  const char* type;
  Made (*make)(const Json& component);
};

// `what`: "normalizer" and so on.
template <class Made>
Made make_component(const char* what, const Json& component, std::span<const Kind<Made>> kinds) {
  const std::string type = value_of<std::string>(component, "type");
  for (const Kind<Made>& kind : kinds) {
    if (type != kind.type) continue;
    try {
      return kind.make(component);
    } catch (const std::runtime_error& e) {
      throw BadComponent(fmt::format("{} {}: {}", what, type, e.what()));
    }
  }
  std::vector<const char*> names;
  for (const Kind<Made>& kind : kinds) names.push_back(kind.type);
  throw BadComponent(
      fmt::format("the {} '{}' is not supported: switchyard has {}", what, type, fmt::join(names, ", ")));
}

// A step that changes something in place; of a Sequence, one after the other; of null, none.
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
  for (const Json& part : component.at(key)) steps.push_back(make(part));
  return [steps](T& x) {
    for (const Step<T>& step : steps) step(x);
  };
}

}  // namespace sy
