#include "src/experiments/document.h"

#include <algorithm>
#include <set>

#include "src/text/ini.h"
#include "src/text/numbers.h"

#include <fmt/format.h>

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

std::string Footnotes::marks(const std::vector<std::string>& texts) {
  std::set<std::ptrdiff_t> numbers;
  for (const std::string& text : texts) {
    if (std::find(texts_.begin(), texts_.end(), text) == texts_.end()) texts_.push_back(text);
    numbers.insert(std::find(texts_.begin(), texts_.end(), text) - texts_.begin() + 1);
  }
  return numbers.empty() ? "" : fmt::format(" [{}]", fmt::join(numbers, ", "));
}

std::string Footnotes::lines(const std::string& before) const {
  std::string lines;
  for (std::size_t i = 0; i < texts_.size(); ++i) lines += fmt::format("{}[{}] {}\n", before, i + 1, texts_[i]);
  return lines;
}

}  // namespace sy
