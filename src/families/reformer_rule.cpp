// Conversion of the keys of Reformer that depend on each other.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "src/families/config_rules.h"
#include "src/families/rule_helpers.h"
#include "src/params/block_specs.h"
#include "src/text/strings.h"

namespace sy {
namespace {

// Text of a list of whole numbers, or of one number.
std::string numbers_text(const Json& value, std::string_view key) {
  if (value.is_number()) return fmt::format("{}", value.get<std::int64_t>());
  std::vector<std::string> texts;
  for (const Json& one : value.elements()) texts.push_back(fmt::format("{}", one.get<std::int64_t>()));
  if (texts.empty()) bad_input("{}: expected a number, or a list of numbers", key);
  return join(texts, ", ");
}

Json whole_numbers(const std::vector<double>& numbers) {
  Json list = Json::array();
  for (const double n : numbers) list.push_back(static_cast<std::int64_t>(n));
  return list;
}

void read_layers(const Json& hf_config, KeySettings& settings) {
  static const std::vector<std::string> by_default{"local", "lsh", "local", "lsh", "local", "lsh"};
  const Json* list = find_value(hf_config, "attn_layers");
  const auto kinds = list ? list->get<std::vector<std::string>>() : by_default;
  if (kinds.empty() || std::ssize(kinds) > max_layers)
    bad_input("attn_layers has {} layers: expected 1 to {}", kinds.size(), max_layers);
  for (const std::string& kind : kinds)
    if (kind != "local" && kind != "lsh") bad_input("attn_layers: {} is not known: expected local or lsh", kind);
  add_setting(settings, "model.layers", kinds.size());
  if (std::ranges::all_of(kinds, [&](const std::string& kind) { return kind == kinds.front(); }))
    return settings.emplace_back("model.attention", kinds.front()), void();
  settings.emplace_back("model.pattern", join(kinds, ", "));
  settings.emplace_back("attention.local.attention", "local");
  settings.emplace_back("attention.lsh.attention", "lsh");
}

void read_reformer(const Json& hf_config, KeySettings& settings) {
  read_layers(hf_config, settings);
  const bool hashed = std::ranges::any_of(settings, [](const auto& setting) { return setting.second == "lsh"; });
  if (const Json* buckets = find_value(hf_config, "num_buckets"); buckets && hashed)
    settings.emplace_back("model.lsh_buckets", numbers_text(*buckets, "num_buckets"));
  const bool axial = bool_or(hf_config, "axial_pos_embds", true);
  settings.emplace_back("model.position", axial ? "axial" : "learned");
  if (!axial) return;
  for (const auto& [hf_name, key, absent] : {std::tuple{"axial_pos_shape", "model.axial_shape", "64, 64"},
                                             std::tuple{"axial_pos_embds_dim", "model.axial_widths", "64, 192"}}) {
    const Json* value = find_value(hf_config, hf_name);
    settings.emplace_back(key, value ? numbers_text(*value, hf_name) : absent);
  }
}

void write_reformer(const Config& config, Json& hf_config) {
  Json kinds = Json::array();
  for (const BlockSpec& block : block_specs(config))
    kinds.push_back(std::string(block.find<LshAttentionSpec>() ? "lsh" : "local"));
  hf_config["attn_layers"] = kinds;
  if (find_value(hf_config, "num_hidden_layers")) put(hf_config, "num_hidden_layers", config.model.layers);
  for (Index layer = 0; layer < config.model.layers; ++layer) {
    const Config::Model& m = config.model_of(layer);
    if (m.attention != AttentionPattern::lsh) continue;
    const Json buckets = whole_numbers(m.lsh_buckets);
    if (m.lsh_buckets == std::vector<double>{1})
      bad_input("model.lsh_buckets = 1 cannot be expressed in a config.json of reformer");
    hf_config["num_buckets"] = m.lsh_buckets.size() == 1 ? Json(static_cast<std::int64_t>(m.lsh_buckets[0])) : buckets;
  }
  const Config::Model& m = config.model;
  hf_config["axial_pos_embds"] = m.position == Position::axial;
  if (m.position != Position::axial) return;
  hf_config["axial_pos_shape"] = whole_numbers(m.axial_shape);
  hf_config["axial_pos_embds_dim"] = whole_numbers(m.axial_widths);
}

}  // namespace

const ConfigRule reformer_rule{read_reformer, write_reformer};

}  // namespace sy
