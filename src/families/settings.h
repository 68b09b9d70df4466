// Conversion between config.json and our configuration, in both directions. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "src/families/family.h"

namespace sy {

// Converts config.json to our configuration, and applies `overrides` (--section.key=value).
// Throws InputError that names the key and the values that can be read. origin: the file, for
// messages.
Config config_of(const Family& family, const Json& hf_config, const std::string& origin,
                 const std::vector<std::string>& overrides);

// Converts our configuration to config.json. hf_config: the imported config.json, or null; its
// other keys stay. Throws InputError if the family cannot express a setting.
Json config_json(const Family& family, const Config& config, Json hf_config);

// ---- helpers of ConfigRule ----

// Returns the member, nullptr if it is absent or null.
const Json* find_value(const Json& hf_config, std::string_view key);
// Formats a number, string or Boolean as in a configuration file.
std::string setting_text(const Json& value);
// Value of one of our keys, with its type: transformers distinguishes 5 and 5.0. key: of [model] or
// [moe].
Json setting_json(std::string_view key, const std::string& text);
// Sets a member. If the member is an equal number, its spelling stays.
void put(Json& hf_config, std::string_view key, Json value);

}  // namespace sy
