// config.json and our configuration, one from the other. Pure.
#pragma once

#include <string>
#include <vector>

#include "src/families/family.h"

namespace sy {

// The configuration of config.json's model, with `overrides` (--section.key=value) on top. Throws InputError that names the
// key and what would be understood. origin: the file, for messages.
Config config_of(const Family& family, const Json& theirs, const std::string& origin,
                 const std::vector<std::string>& overrides);

// The other way round: `theirs`, what is known beforehand (the imported file's, or null), with all that our configuration says
// put in. Throws InputError where the family has no words for it.
Json config_json(const Family& family, const Config& ours, Json theirs);

// ---- for parts (ConfigPart) ----

// The member, or nullptr where it is absent or null.
const Json* given(const Json& theirs, std::string_view key);
// A number, text or truth value as a configuration file has it.
std::string setting_text(const Json& value);
// The value of one of our keys, with its type: transformers tells 5 from 5.0. key: of [model] or [moe].
Json setting_json(std::string_view key, const std::string& text);
// Sets a member. A number that is there and as large stays as it is written.
void put(Json& theirs, std::string_view key, Json value);

}  // namespace sy
