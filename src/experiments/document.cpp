#include "src/experiments/document.h"

#include <charconv>

#include "src/text/ini.h"

namespace sy {
namespace {

// Converts a valid value to the JSON type of its key in the table of keys.
Json typed(std::string_view type, const std::string& value) {
  const char *const begin = value.data(), *const end = begin + value.size();
  if (type == "true or false") return value == "true";
  if (type == "a whole number") {
    Index number = 0;
    if (std::from_chars(begin, end, number).ptr == end) return number;
  }
  if (type == "a number") {
    double number = 0;
    if (std::from_chars(begin, end, number).ptr == end) return number;
  }
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
