// Makes a row of the table of configuration keys of a member of Config. Only for the files of this
// folder.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/config/keys.h"
#include "src/config/values.h"
#include "src/text/json.h"
#include "src/text/strings.h"

namespace sy {

template <class T>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  if constexpr (std::is_same_v<T, bool>) names = {"true", "false"};
  if constexpr (std::is_enum_v<T>)
    for (const auto& entry : EnumNames<T>::table) names.emplace_back(entry.name);
  return names;
}

template <class T>
std::string accepted_by() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_integral_v<T>) return "a whole number";
  if constexpr (std::is_floating_point_v<T>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, std::vector<double>>) return "numbers with commas between them";
  if constexpr (std::is_same_v<T, Pattern>)
    return "names of up to 100 kinds, each with how many layers of it follow one another, up to 10000 in all: local*5, "
           "global";
  if constexpr (std::is_same_v<T, BatchRamp>)
    return "STEP:BATCH with commas between them, with ascending steps from 2 on: 1000:32, 5000:64";
  if constexpr (std::is_same_v<T, BlendSchedule>)
    return "STEP:NAME=WEIGHT NAME=WEIGHT with commas between changes, with ascending steps from 1 on, each domain once "
           "and a weight above 0: 1000:web=7 code=3, 5000:code=1";
  return "one of " + join(names_of<T>(), ", ");
}

template <class T>
constexpr ValueType value_type{
    .accepts = accepted_by<T>,
    .names = names_of<T>,
    .show = [](const void* value) { return show(*static_cast<const T*>(value)); },
    .read =
        [](const std::string& text, void* value) {
          T parsed{};
          if (!read(text, parsed)) return false;
          *static_cast<T*>(value) = std::move(parsed);
          return true;
        },
    .json =
        [](const void* value) {
          if constexpr (std::is_arithmetic_v<T>) return Json(*static_cast<const T*>(value));
          return Json(show(*static_cast<const T*>(value)));
        },
};

// The types of the section and of the value.
template <class S, class T>
std::pair<S, T> types_of(T S::*);

// A row of the table. The section and the type of the value follow from the pointer to the member.
template <auto member>
constexpr Key row(std::string_view name, Bounds bounds, ResumePolicy on_resume, std::string_view help,
                  std::span<const std::string_view> values = {}) {
  using Types = decltype(types_of(member));
  const auto address = [](const Config& c, const Config::Model& model, const Config::Moe& moe) -> const void* {
    const Hyperparameters& hyperparameters = c.train;
    const auto sections = std::tie(model, moe, c.parallel, c.train, hyperparameters, c.data, c.run, c.log);
    return &(std::get<const typename Types::first_type&>(sections).*member);
  };
  return {name, value_type<typename Types::second_type>, address, bounds, on_resume, help, values};
}

// A row of [model] or [moe] whose value a stack of an encoder-decoder may replace.
template <auto member>
constexpr Key stack_row(std::string_view name, Bounds bounds, ResumePolicy on_resume, std::string_view help,
                        std::span<const std::string_view> values = {}) {
  Key key = row<member>(name, bounds, on_resume, help, values);
  key.by_stack = true;
  return key;
}

// A row of [model] whose value a kind of layer may replace, or a stack.
template <auto member>
constexpr Key kind_row(std::string_view name, Bounds bounds, ResumePolicy on_resume, std::string_view help) {
  Key key = stack_row<member>(name, bounds, on_resume, help);
  key.by_kind = true;
  return key;
}

}  // namespace sy
