// Values of a configuration: those of a layer, as text, and their differences from another one's.
#include "src/config.h"

#include <algorithm>
#include <map>
#include <set>

#include "src/config/keys.h"
#include "src/config/values.h"
#include "src/text/ini.h"
#include "src/text/json.h"
#include "src/text/table.h"

namespace sy {

const std::string& Pattern::kind_of(Index layer) const {
  static const std::string one_kind;
  if (segments.empty()) return one_kind;
  Index period = 0;
  for (const Segment& segment : segments) period += segment.layers;
  Index at = layer % period;
  std::size_t i = 0;
  while (at >= segments[i].layers) at -= segments[i++].layers;
  return segments[i].kind;
}

Index Config::Train::batch_of(Index step) const {
  Index batch = global_batch;
  for (const BatchRamp::Change& change : batch_ramp.changes)
    if (step >= change.step) batch = change.batch;
  return batch;
}

Index Config::Train::largest_batch() const {
  Index largest = global_batch;
  for (const BatchRamp::Change& change : batch_ramp.changes) largest = std::max(largest, change.batch);
  return largest;
}

Index Config::Train::samples_before(Index step) const {
  double samples = 0;  // exact below 2^53
  Index first = 1, batch = global_batch;
  for (const BatchRamp::Change& change : batch_ramp.changes) {
    if (change.step >= step) break;
    samples += static_cast<double>(change.step - first) * static_cast<double>(batch);
    first = change.step;
    batch = change.batch;
  }
  samples += static_cast<double>(step - first) * static_cast<double>(batch);
  return static_cast<Index>(std::min(samples, 0x1p61));
}

const Config::Kind* Config::kind_of(Index layer) const {
  const std::string& name = model.pattern.kind_of(layer);
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) { return kind.name == name; });
  return found == kinds.end() ? nullptr : &*found;
}

const Config::Model& Config::model_of(Index layer) const {
  if (!stacks.empty()) return stacks[layer < stacks[0].model.layers ? 0 : 1].model;
  const Kind* const kind = kind_of(layer);
  return kind ? kind->model : model;
}

Config Config::of_stack(std::size_t stack) const {
  Config c = *this;
  c.model = stacks.at(stack).model;
  c.moe = stacks.at(stack).moe;
  c.moe.physical_to_logical = moe.physical_to_logical;  // of all stacks
  c.stacks.clear();
  return c;
}

std::string Config::layer_prefix(Index layer) const {
  if (stacks.empty()) return fmt::format("layers.{}.", layer);
  const Index encoder = stacks[0].model.layers;
  return layer < encoder ? fmt::format("encoder.layers.{}.", layer)
                         : fmt::format("decoder.layers.{}.", layer - encoder);
}

std::string Config::layer_name(Index layer) const {
  if (layer >= model.layers) return fmt::format("module {}", layer - model.layers + 1);
  if (stacks.empty()) return fmt::format("layer {}", layer);
  const Index encoder = stacks[0].model.layers;
  return layer < encoder ? fmt::format("encoder layer {}", layer) : fmt::format("decoder layer {}", layer - encoder);
}

Index Config::blocks_with(AttentionPattern attention) const {
  Index count = 0;
  for (Index layer = 0; layer < num_blocks(); ++layer) count += model_of(layer).attention == attention;
  return count;
}

bool Config::is_moe(Index layer) const {
  if (!stacks.empty()) {
    const Index encoder = stacks[0].model.layers;
    return layer < encoder ? of_stack(0).is_moe(layer) : of_stack(1).is_moe(layer - encoder);
  }
  const auto& dense = moe.dense_layers;
  return moe.experts > 0 && layer >= moe.first_dense && (layer - moe.first_dense) % moe.every == 0 &&
         std::find(dense.begin(), dense.end(), static_cast<double>(layer)) == dense.end();
}

FfnActivation Config::activation_of(std::string_view ffn) const {
  for (const FfnName& f : ffn_names)
    if (f.name == ffn)
      return {f.kind.act, f.kind.gated, static_cast<float>(model.swish_beta), static_cast<float>(model.ffn_clamp)};
  return {};
}

namespace {

// The keys that set their own values.
std::vector<KeyEntry> own_entries(const Config& config) {
  std::vector<KeyEntry> entries = key_entries(config);
  std::erase_if(entries, [](const KeyEntry& entry) { return !entry.sets_value(); });
  return entries;
}

// The origin of a value, for display.
std::string origin_of(const std::string& key, const std::string& value, const ConfigOrigins& origins) {
  if (const auto origin = origins.find(key); origin != origins.end()) return visible(origin->second);
  const ConfigKey* const known = find_config_key(key);
  return known && known->default_value == value ? "default" : "default, by other keys";
}

}  // namespace

std::string to_ini(const Config& config, const ConfigOrigins* origins) {
  std::string out, section;
  for (const KeyEntry& entry : own_entries(config)) {
    const auto dot = entry.name.rfind('.');
    if (entry.name.substr(0, dot) != section) {
      section = entry.name.substr(0, dot);
      out += (out.empty() ? "[" : "\n[") + section + "]\n";
    }
    const std::string line = entry.name.substr(dot + 1) + " = " + ini_value(entry.text());
    out += origins ? fmt::format("{:<32} # {}\n", line, origin_of(entry.name, entry.text(), *origins)) : line + "\n";
  }
  return out;
}

Json to_json(const Config& config, const ConfigOrigins& origins) {
  Json out = Json::object();
  for (const KeyEntry& entry : own_entries(config))
    out[entry.name] =
        Json{{"value", entry.key->type.json(entry.value)}, {"origin", origin_of(entry.name, entry.text(), origins)}};
  return out;
}

std::vector<RankSetting> rank_settings(const Config& config) {
  std::vector<RankSetting> out;
  for (const KeyEntry& entry : own_entries(config))
    if (entry.value != &config.data.path) out.push_back({entry.name, entry.text()});
  return out;
}

std::string value_of(const Config& config, std::string_view key) {
  for (const KeyEntry& entry : key_entries(config))
    if (entry.name == key) return entry.text();
  SY_ASSERT(false, "no key {}", key);
}

std::vector<KeyDifference> differences(const Config& here, const Config& there, ResumePolicy policy) {
  // The pairs of kinds that some layer has here and there, and the first such layer.
  std::map<std::pair<std::string, std::string>, Index> pairs;
  for (Index layer = 0; layer < std::min(here.num_blocks(), there.num_blocks()); ++layer)
    pairs.try_emplace({here.model.pattern.kind_of(layer), there.model.pattern.kind_of(layer)}, layer);

  std::vector<KeyDifference> out;
  for (const Key& key : key_table()) {
    if (key.on_resume != policy) continue;
    if (key.by_stack && !here.stacks.empty() && !there.stacks.empty()) {
      const std::size_t before = out.size();
      for (std::size_t i = 0; i < here.stacks.size(); ++i)
        if (const KeyEntry a(here, key, &here.stacks[i]), b(there, key, &there.stacks[i]); a.text() != b.text())
          out.push_back({a.name, a.text(), b.text()});
      // Besides model.seq_len, the length of a sample's text, the stacks have all such values.
      if (out.size() > before || key.name != "model.seq_len") continue;
    }
    if (!key.by_kind) {
      const KeyEntry a(here, key, nullptr), b(there, key, nullptr);
      if (a.text() != b.text()) out.push_back({a.name, a.text(), b.text()});
      continue;
    }
    std::set<std::string> reported;
    for (const auto& [kinds, layer] : pairs) {
      const KeyEntry a(here, key, here.kind_of(layer)), b(there, key, there.kind_of(layer));
      const std::string source = a.source_key();
      if (a.text() != b.text() && reported.insert(source).second)
        out.push_back(
            {source == b.source_key() ? source : fmt::format("{} of layer {}", source, layer), a.text(), b.text()});
    }
  }
  return out;
}

}  // namespace sy
