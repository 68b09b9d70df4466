// Helpers that the conversions of config.json share (config_rules.h).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "src/families/settings.h"

namespace sy {

constexpr Index max_layers = 10000;  // maximum of model.layers

// Values in layer_types.
inline constexpr const char *full_type = "full_attention", *sliding_type = "sliding_attention";

// Adds a setting with the text of a number or Boolean.
template <class T>
void add_setting(KeySettings& settings, std::string_view key, const T& value) {
  settings.emplace_back(key, fmt::format("{}", value));
}

// Reads a member as a setting, if it is present.
inline void copy_setting(const Json& hf_config, std::string_view hf_name, KeySettings& settings, std::string_view key) {
  if (const Json* value = find_value(hf_config, hf_name)) settings.emplace_back(key, setting_text(*value));
}

// Members of config.json, or a default value if they are absent.
template <class T>
T value_or(const Json& hf_config, std::string_view hf_name, T default_value) {
  const Json* value = find_value(hf_config, hf_name);
  return value ? value->get<T>() : default_value;
}
inline constexpr auto int_or = value_or<Index>;
inline constexpr auto bool_or = value_or<bool>;

inline bool has_setting(const KeySettings& settings, std::string_view key) {
  return std::any_of(settings.begin(), settings.end(), [&](const auto& setting) { return setting.first == key; });
}

// Sections of the configuration for full and sliding layers. Empty if no layer is of that type.
// Valid after read_windows.
struct LayerSections {
  std::string full, sliding;
};
inline LayerSections layer_sections(const KeySettings& settings) {
  if (has_setting(settings, "model.pattern")) return {"model", "attention.local"};
  if (has_setting(settings, "model.window")) return {"", "model"};
  return {"model", ""};
}

// Copies an object without the member of this name.
inline Json without(const Json& object, std::string_view name) {
  Json rest = Json::object();
  for (const Json::Member& m : object.members())
    if (m.name != name) rest.append(m.name, m.value);
  return rest;
}

}  // namespace sy
