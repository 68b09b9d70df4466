// The configuration keys for display.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/config/keys.h"

namespace sy {
namespace {

ConfigKey displayed(const KeyEntry& entry) {
  const Key& key = *entry.key;
  ConfigKey out;
  out.name = entry.name;
  out.type = key.type.accepts();
  out.default_value = entry.kind ? "" : entry.text();
  out.help = !entry.kind            ? std::string(key.help)
             : entry.kind->is_stack ? fmt::format(
                                          "replaces {} in the encoder of an encoder-decoder; [decoder] has the "
                                          "same key",
                                          key.name)
                                    : fmt::format("replaces {} in layers of kind {}", key.name, entry.kind->name);
  if (std::isfinite(key.bounds.low))
    out.range = key.bounds.high < no_upper_bound ? fmt::format("from {} to {}", key.bounds.low, key.bounds.high)
                                                 : fmt::format("from {} on", key.bounds.low);
  out.values = key.type.names();
  if (!key.values.empty()) out.values.assign(key.values.begin(), key.values.end());
  return out;
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    Config defaults;
    defaults.kinds.push_back({"NAME", {}, {}});
    defaults.stacks.push_back({std::string(stack_sections[0]), {}, {}, true});
    std::vector<ConfigKey> all;
    for (const KeyEntry& entry : key_entries(defaults)) all.push_back(displayed(entry));
    return all;
  }();
  return keys;
}

const ConfigKey* find_config_key(std::string_view name) {
  std::string known(name);
  if (const std::string decoder = fmt::format("{}.", stack_sections[1]); known.starts_with(decoder))
    known = fmt::format("{}.{}", stack_sections[0], known.substr(decoder.size()));
  if (const auto first = name.find('.'), second = name.find('.', first + 1); second != name.npos && first != name.npos)
    known.replace(first + 1, second - first - 1, "NAME");
  const auto found = std::ranges::find(config_keys(), known, &ConfigKey::name);
  return found == config_keys().end() ? nullptr : &*found;
}

}  // namespace sy
