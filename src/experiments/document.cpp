#include "src/experiments/document.h"

#include "src/text/ini.h"
#include "src/text/numbers.h"

namespace sy {
namespace {

// Converts a valid value to the JSON type of its key in the table of keys.
Json typed(std::string_view type, const std::string& value) {
  if (type == "true or false") return value == "true";
  if (const auto whole = parse_number<Index>(value); whole && type == "a whole number") return *whole;
  if (const auto number = parse_number<double>(value); number && type == "a number") return *number;
  return value;
}

}  // namespace

Json json_document(std::string_view command, const Json& provenance) {
  return {{"format", "switchyard-" + std::string(command)}, {"version", json_version}, {"provenance", provenance}};
}

Json config_json(const Config& config) {
  Json json = Json::object();
  for (const IniEntry& entry : read_ini(to_ini(config)).entries) {
    const std::size_t dot = entry.key.rfind('.');
    const std::string section = entry.key.substr(0, dot), name = entry.key.substr(dot + 1);
    const ConfigKey* const key = find_config_key(entry.key);
    json[section][name] = typed(key ? key->type : "text", entry.value);
  }
  return json;
}

}  // namespace sy
