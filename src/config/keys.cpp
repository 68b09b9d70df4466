// The one table of configuration keys, from its two parts, and its rows in one configuration.
#include "src/config/keys.h"

#include <iterator>

namespace sy {

std::span<const Key> key_table() {
  static const std::vector<Key> table = [] {
    std::vector<Key> keys;
    for (const auto& rows : {model_keys(), run_keys()}) std::ranges::copy(rows, std::back_inserter(keys));
    return keys;
  }();
  return table;
}

KeyEntry::KeyEntry(const Config& config, const Key& key_row, const Config::Kind* of_kind)
    : key(&key_row), kind(of_kind), name(key->name), value(key->address(config, kind ? kind->model : config.model)) {
  if (kind) name = fmt::format("{}.{}.{}", attention_section, kind->name, name.substr(name.find('.') + 1));
}

std::vector<LayerKind> layer_kinds(const Config& config) {
  std::vector<LayerKind> out{{config, nullptr}};
  for (const Config::Kind& kind : config.kinds) out.push_back({config, &kind});
  return out;
}

std::string LayerKind::key_at(const void* value) const {
  for (const Key& row : key_table())
    if (row.address(config, model()) == value) return KeyEntry(config, row, kind).source_key();
  SY_ASSERT(false, "the member has no key");
}

std::vector<KeyEntry> key_entries(const Config& config) {
  const auto in_model = [](const Key& row) { return row.name.starts_with("model."); };
  std::vector<KeyEntry> out;
  for (const LayerKind& layers : layer_kinds(config))
    for (const Key& row : key_table())
      if (layers.kind ? row.by_kind : in_model(row)) out.emplace_back(config, row, layers.kind);
  for (const Key& row : key_table())
    if (!in_model(row)) out.emplace_back(config, row, nullptr);
  return out;
}

}  // namespace sy
