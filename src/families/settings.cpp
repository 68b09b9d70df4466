#include "src/families/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "src/text/strings.h"

namespace sy {
namespace {

// Keys that affect training, but not the model's outputs. An export need not express them.
constexpr std::string_view training_keys[] = {"moe.capacity_factor",  "moe.capacity_scope", "moe.drop_order",
                                              "moe.aux_loss",         "moe.aux_scope",      "moe.aux_layers",
                                              "moe.aux_probability",  "moe.z_loss",         "moe.bias_update_rate",
                                              "moe.choice",           "moe.noise",          "moe.jitter",
                                              "model.mtp_depth",      "model.mask_token",   "model.sentinels",
                                              "model.sentinel_token", "model.segment_token"};

// Returns true if the key affects the outputs of this model.
bool affects_outputs(const Config& config, const std::string& key) {
  if (key == "train.reversible") return true;
  const bool stack = key.starts_with("encoder.") || key.starts_with("decoder.");
  const bool section = stack || key.starts_with("model.") || key.starts_with("attention.") || key.starts_with("moe.");
  if (!section || std::find(std::begin(training_keys), std::end(training_keys), key) != std::end(training_keys))
    return false;
  const auto any_layer = [&](const auto& has) {
    for (Index layer = 0; layer < config.model.layers; ++layer)
      if (has(layer)) return true;
    return false;
  };
  const auto position = [&](Position p) {
    return any_layer([&](Index layer) { return config.model_of(layer).position == p; });
  };
  // The length of a sample's text: each stack has its own.
  if (!config.stacks.empty() && key == "model.seq_len") return false;
  if (stack && (key.ends_with(".every") || key.ends_with(".first_dense") || key.ends_with(".dense_layers")))
    return config.moe.experts > 0;
  if (key.starts_with("moe.")) return key == "moe.experts" || config.moe.experts > 0;
  if (key == "model.d_ff") return any_layer([&](Index layer) { return !config.is_moe(layer); });
  if (stack && key.ends_with(".seq_len")) return position(Position::learned);
  const auto attends = [&](AttentionPattern pattern) {
    return any_layer([&](Index layer) { return config.model_of(layer).attention == pattern; });
  };
  if (key.find(".lsh_") != key.npos) return attends(AttentionPattern::lsh);
  if (key.find(".local_") != key.npos) return attends(AttentionPattern::local);
  if (key.find(".rope_") != key.npos) return position(Position::rope);
  if (key.find(".t5_") != key.npos) return position(Position::t5);
  return true;
}

// Returns true if both are numbers with a relative difference of at most 1e-10.
bool nearly_equal(const std::string& here, const std::string& there) {
  const std::optional<Json> a = Json::try_parse(here), b = Json::try_parse(there);
  if (!a || !b || !a->is_number() || !b->is_number()) return false;
  return std::abs(a->get<double>() - b->get<double>()) <= 1e-10 * std::abs(a->get<double>());
}

// Replaces a 0 that means "as another key" by the value of that key.
Config with_explicit_values(Config config) {
  Config::Model& m = config.model;
  if (m.kv_lora_rank > 0 && m.latent_norm_eps == 0) m.latent_norm_eps = m.norm_eps;
  const auto set_scale = [](Config::Model& of) {
    if (of.attention_scale > 0) return;
    const bool hashed = of.attention == AttentionPattern::lsh;
    of.attention_scale = hashed ? 1 : 1 / std::sqrt(static_cast<double>(of.key_width()));
  };
  set_scale(m);
  for (Config::Kind& kind : config.kinds) set_scale(kind.model);
  for (Config::Kind& stack : config.stacks) set_scale(stack.model);
  return config;
}

// Refuses an odd number of rotated elements: transformers rounds it up, and we round it down.
void check_rotated(const Config& config, const std::string& origin) {
  for (Index layer = 0; layer < config.model.layers; ++layer) {
    const Config::Model& m = config.model_of(layer);
    if (m.position != Position::rope) continue;
    const Index width = m.kv_lora_rank > 0 ? m.qk_rope_head_dim : m.head_dim;
    const auto rotated = static_cast<Index>(static_cast<double>(width) * m.rope_fraction);
    if (rotated % 2 != 0)
      bad_input("{}: {} of {} elements of a head are rotated: only an even number can be read", origin, rotated, width);
  }
}

std::string readable_values(const ConfigRow& row) {
  std::vector<std::string> values;
  for (const auto& [hf_value, value] : row.value_map) values.emplace_back(hf_value);
  return join(values, ", ");
}

// Name of the row's key in this file: the first alternative that is present, or else the first.
std::string_view key_of(const ConfigRow& row, const Json& hf_config) {
  for (std::size_t at = 0; at < row.hf_name.size();) {
    const std::size_t end = std::min(row.hf_name.find('|', at), row.hf_name.size());
    if (find_value(hf_config, row.hf_name.substr(at, end - at))) return row.hf_name.substr(at, end - at);
    at = end + 1;
  }
  return row.hf_name.substr(0, row.hf_name.find('|'));
}

void read_row(const ConfigRow& row, const Json& hf_config, const Family& family, KeySettings& settings) {
  if (row.hf_name.empty()) {
    settings.emplace_back(row.key, row.value_map.front().second);
    return;
  }
  const std::string_view key = key_of(row, hf_config);
  const Json* found = find_value(hf_config, key);
  const bool is_zero = !found && row.zero_is_null && hf_config.contains(key);
  if (!found && !is_zero) {
    if (row.default_value == "!") bad_input("it has no {}, which {} models need", key, family.name);
    if (row.default_value.empty()) return;
  }
  const Json value = found ? *found : is_zero ? Json(0) : Json::parse(row.default_value);
  if (row.value_map.empty()) {
    settings.emplace_back(row.key, setting_text(value));
    return;
  }
  for (const auto& [hf_value, key_value] : row.value_map)
    if (Json::parse(hf_value) == value) {
      if (!row.key.empty()) settings.emplace_back(row.key, key_value);
      return;
    }
  bad_input("{} = {}: of {} models, only {} can be read", key, value.dump(), family.name, readable_values(row));
}

void write_row(const ConfigRow& row, const Config& config, const Family& family, Json& hf_config) {
  if (row.hf_name.empty()) return;
  const std::string_view key = key_of(row, hf_config);
  if (row.key.empty()) {
    if (!find_value(hf_config, key)) hf_config[key] = Json::parse(row.value_map.front().first);
    return;
  }
  const std::string text = value_of(config, row.key);
  if (row.value_map.empty()) {
    Json value = setting_json(row.key, text);
    if (row.zero_is_null && value.get<double>() == 0 && !find_value(hf_config, key)) value = Json();
    return put(hf_config, key, std::move(value));
  }
  // Several values may map to `text`. Prefer the one that the imported file has.
  const Json* before = find_value(hf_config, key);
  const std::pair<std::string_view, std::string_view>* found = nullptr;
  for (const auto& entry : row.value_map) {
    if (entry.second != text) continue;
    if (!found || (before && Json::parse(entry.first) == *before)) found = &entry;
  }
  if (!found) bad_input("{} = {} cannot be expressed in a config.json of {}", row.key, text, family.name);
  hf_config[key] = Json::parse(found->first);
}

}  // namespace

const Json* find_value(const Json& hf_config, std::string_view key) {
  const Json* value = hf_config.find(key);
  return value && !value->is_null() ? value : nullptr;
}

std::string setting_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Json setting_json(std::string_view key, const std::string& text) {
  const ConfigKey* const config_key = find_config_key(key);
  SY_ASSERT(config_key, "no key {}", key);
  const std::optional<Json> literal = Json::try_parse(text);
  if (!literal) return text;
  return config_key->type == "a number" ? Json(literal->get<double>()) : *literal;
}

void put(Json& hf_config, std::string_view key, Json value) {
  const Json* before = find_value(hf_config, key);
  const bool same = before && before->is_number() && value.is_number() && before->get<double>() == value.get<double>();
  if (!same) hf_config[key] = std::move(value);
}

Config config_of(const Family& family, const Json& hf_config, const std::string& origin,
                 const std::vector<std::string>& overrides) {
  KeySettings settings;
  try {
    if (find_value(hf_config, "quantization_config"))
      bad_input("its weights are quantised: save them in bf16 or f32 first");
    for (const auto& table : family.config_rows)
      for (const ConfigRow& row : table) read_row(row, hf_config, family, settings);
    for (const ConfigRule* rule : family.rules) rule->read(hf_config, settings);
  } catch (const JsonError& e) {
    bad_input("{}: {}", origin, e.what());
  } catch (const InputError& e) {
    bad_input("{}: {}", origin, e.what());
  }
  std::vector<std::string> all;
  for (const auto& [key, value] : settings) all.push_back(fmt::format("--{}={}", key, value));
  all.insert(all.end(), overrides.begin(), overrides.end());
  Config config = parse_config("", origin, all);
  check_rotated(config, origin);
  return config;
}

Json config_json(const Family& family, const Config& config, Json hf_config) {
  if (hf_config.is_null()) hf_config = Json::object();
  const bool has_pairs = !family.decoder_layer_rows.empty();
  if (has_pairs == config.stacks.empty())
    bad_input("{} models are {}, and this is model.kind = {}", family.name,
              has_pairs ? "encoder-decoders" : "decoders or encoders", value_of(config, "model.kind"));
  hf_config["architectures"] = Json::array({std::string(family.architecture)});
  hf_config["model_type"] = std::string(family.name);
  for (const auto& table : family.config_rows)
    for (const ConfigRow& row : table) write_row(row, config, family, hf_config);
  for (const ConfigRule* rule : family.rules) rule->write(config, hf_config);
  // The exported config.json must describe exactly this model when it is read again.
  const Config again = config_of(family, hf_config, "the exported config.json", {});
  std::vector<std::string> lost;
  for (const ResumePolicy policy : {ResumePolicy::must_match, ResumePolicy::report, ResumePolicy::reorders_samples})
    for (const KeyDifference& d : differences(with_explicit_values(config), with_explicit_values(again), policy))
      if (affects_outputs(config, d.key) && !nearly_equal(d.here, d.there))
        lost.push_back(fmt::format("{} = {} (it would be {})", d.key, d.here, d.there));
  if (!lost.empty())
    bad_input("a config.json of {} cannot express {}: the model is not one of this family", family.name,
              join(lost, ", "));
  return hf_config;
}

}  // namespace sy
