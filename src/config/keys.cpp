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
    : key(&key_row),
      kind(of_kind),
      name(key->name),
      value(key->address(config, LayerKind{config, kind}.model(), LayerKind{config, kind}.moe())) {
  if (!kind) return;
  name = name.substr(name.find('.') + 1);
  name = kind->is_stack ? fmt::format("{}.{}", kind->name, name)
                        : fmt::format("{}.{}.{}", attention_section, kind->name, name);
}

void keep_own_value(const Config& config, Config::Kind& kind, const Key& key) {
  const KeyEntry own(config, key, &kind);
  if (!own.sets_value() && own.text() != KeyEntry(config, key, nullptr).text()) kind.own_keys.push_back(own.name);
}

std::vector<LayerKind> layer_kinds(const Config& config) {
  std::vector<LayerKind> out;
  for (const Config::Kind& stack : config.stacks) out.push_back({config, &stack});
  if (!out.empty()) return out;
  out.push_back({config, nullptr});
  for (const Config::Kind& kind : config.kinds) out.push_back({config, &kind});
  return out;
}

std::string LayerKind::key_at(const void* value) const {
  for (const Key& row : key_table())
    if (row.address(config, model(), moe()) == value) return KeyEntry(config, row, kind).source_key();
  SY_ASSERT(false, "the member has no key");
}

std::vector<KeyEntry> key_entries(const Config& config) {
  const auto in_model = [](const Key& row) { return row.name.starts_with("model."); };
  std::vector<KeyEntry> out;
  const auto append = [&](const Config::Kind* kind, const auto& is_listed) {
    for (const Key& row : key_table())
      if (is_listed(row)) out.emplace_back(config, row, kind);
  };
  append(nullptr, in_model);
  for (const Config::Kind& kind : config.kinds) append(&kind, [](const Key& row) { return row.by_kind; });
  for (const Config::Kind& stack : config.stacks) append(&stack, [](const Key& row) { return row.by_stack; });
  append(nullptr, [&](const Key& row) { return !in_model(row); });
  return out;
}

}  // namespace sy
