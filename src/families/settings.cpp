#include "src/families/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "src/text/words.h"

namespace sy {
namespace {

// Keys of [moe] that affect training, but not the model's outputs. An export need not express them.
constexpr std::string_view of_training[] = {
    "moe.capacity_factor", "moe.capacity_scope", "moe.drop_order", "moe.aux_loss", "moe.aux_scope", "moe.aux_layers",
    "moe.aux_probability", "moe.z_loss",         "moe.bias_rate",  "moe.choice",   "moe.noise",     "moe.jitter"};

// Returns true if the key affects the outputs of this model.
bool of_model(const Config& config, const std::string& key) {
  const bool section = key.starts_with("model.") || key.starts_with("attention.") || key.starts_with("moe.");
  if (!section || std::find(std::begin(of_training), std::end(of_training), key) != std::end(of_training)) return false;
  const auto any_layer = [&](const auto& has) {
    for (Index layer = 0; layer < config.model.layers; ++layer)
      if (has(layer)) return true;
    return false;
  };
  const auto position = [&](Position p) {
    return any_layer([&](Index layer) { return config.model_of(layer).position == p; });
  };
  if (key.starts_with("moe.")) return key == "moe.experts" || config.moe.experts > 0;
  if (key == "model.d_ff") return any_layer([&](Index layer) { return !config.is_moe(layer); });
  if (key.find(".rope_") != key.npos) return position(Position::rope);
  if (key.find(".t5_") != key.npos) return position(Position::t5);
  return true;
}

// Returns true if both are numbers with a relative difference of at most 1e-10.
bool as_close_as_rounding(const std::string& here, const std::string& there) {
  const std::optional<Json> a = Json::try_parse(here), b = Json::try_parse(there);
  if (!a || !b || !a->is_number() || !b->is_number()) return false;
  return std::abs(a->get<double>() - b->get<double>()) <= 1e-10 * std::abs(a->get<double>());
}

// Replaces a 0 that means "as another key" by the value of that key.
Config spelled_out(Config config) {
  Config::Model& m = config.model;
  if (m.kv_latent > 0 && m.latent_eps == 0) m.latent_eps = m.norm_eps;
  return config;
}

// Refuses an odd number of rotated elements: transformers rounds it up, and we round it down.
void check_rotated(const Config& config, const std::string& origin) {
  for (Index layer = 0; layer < config.model.layers; ++layer) {
    const Config::Model& m = config.model_of(layer);
    if (m.position != Position::rope) continue;
    const Index width = m.kv_latent > 0 ? m.rope_head_dim : m.head_dim;
    const auto rotated = static_cast<Index>(static_cast<double>(width) * m.rope_fraction);
    if (rotated % 2 != 0)
      bad_input("{}: {} of {} elements of a head are rotated: only an even number can be read", origin, rotated, width);
  }
}

std::string words_text(const ConfigRow& row) {
  std::vector<std::string> words;
  for (const auto& [theirs, ours] : row.words) words.emplace_back(theirs);
  return join(words, ", ");
}

// Name of the row's key in this file: the first alternative that is present, or else the first.
std::string_view key_of(const ConfigRow& row, const Json& theirs) {
  for (std::size_t at = 0; at < row.theirs.size();) {
    const std::size_t end = std::min(row.theirs.find('|', at), row.theirs.size());
    if (given(theirs, row.theirs.substr(at, end - at))) return row.theirs.substr(at, end - at);
    at = end + 1;
  }
  return row.theirs.substr(0, row.theirs.find('|'));
}

void read_row(const ConfigRow& row, const Json& theirs, const Family& family, KeySettings& ours) {
  if (row.theirs.empty()) {
    ours.emplace_back(row.ours, row.words.front().second);
    return;
  }
  const std::string_view key = key_of(row, theirs);
  const Json* value = given(theirs, key);
  Json otherwise;
  if (!value && row.zero_is_null && theirs.contains(key)) {
    otherwise = 0;
    value = &otherwise;
  }
  if (!value) {
    if (row.missing == "!") bad_input("it has no {}, which {} models need", key, family.name);
    if (row.missing.empty()) return;
    otherwise = Json::parse(row.missing);
    value = &otherwise;
  }
  if (row.words.empty()) {
    ours.emplace_back(row.ours, setting_text(*value));
    return;
  }
  for (const auto& [word, own] : row.words)
    if (Json::parse(word) == *value) {
      if (!row.ours.empty()) ours.emplace_back(row.ours, own);
      return;
    }
  bad_input("{} = {}: of {} models, only {} can be read", key, value->dump(), family.name, words_text(row));
}

void write_row(const ConfigRow& row, const Config& ours, const Family& family, Json& theirs) {
  if (row.theirs.empty()) return;
  const std::string_view key = key_of(row, theirs);
  if (row.ours.empty()) {
    if (!given(theirs, key)) theirs[key] = Json::parse(row.words.front().first);
    return;
  }
  const std::string text = value_of(ours, row.ours);
  if (row.words.empty()) {
    Json value = setting_json(row.ours, text);
    if (row.zero_is_null && value.get<double>() == 0 && !given(theirs, key)) value = Json();
    return put(theirs, key, std::move(value));
  }
  // Several words may mean `text`. Prefer the one that the imported file has.
  const Json* before = given(theirs, key);
  const std::pair<std::string_view, std::string_view>* found = nullptr;
  for (const auto& word : row.words) {
    if (word.second != text) continue;
    if (!found || (before && Json::parse(word.first) == *before)) found = &word;
  }
  if (!found) bad_input("{} = {} has no words in a config.json of {}", row.ours, text, family.name);
  theirs[key] = Json::parse(found->first);
}

}  // namespace

const Json* given(const Json& theirs, std::string_view key) {
  const Json* value = theirs.find(key);
  return value && !value->is_null() ? value : nullptr;
}

std::string setting_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Json setting_json(std::string_view key, const std::string& text) {
  static const std::vector<ConfigKey> keys = config_keys();
  const auto row = std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& k) { return k.name == key; });
  SY_ASSERT(row != keys.end(), "no key {}", key);
  const std::optional<Json> literal = Json::try_parse(text);
  if (!literal) return text;
  return row->type == "a number" ? Json(literal->get<double>()) : *literal;
}

void put(Json& theirs, std::string_view key, Json value) {
  const Json* before = given(theirs, key);
  const bool same = before && before->is_number() && value.is_number() && before->get<double>() == value.get<double>();
  if (!same) theirs[key] = std::move(value);
}

Config config_of(const Family& family, const Json& theirs, const std::string& origin,
                 const std::vector<std::string>& overrides) {
  KeySettings settings;
  try {
    if (given(theirs, "quantization_config")) bad_input("its weights are quantised: save them in bf16 or f32 first");
    for (const auto& table : family.config)
      for (const ConfigRow& row : table) read_row(row, theirs, family, settings);
    for (const ConfigPart* part : family.parts) part->read(theirs, settings);
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

Json config_json(const Family& family, const Config& ours, Json theirs) {
  if (theirs.is_null()) theirs = Json::object();
  theirs["architectures"] = Json::array({std::string(family.architecture)});
  theirs["model_type"] = std::string(family.name);
  for (const auto& table : family.config)
    for (const ConfigRow& row : table) write_row(row, ours, family, theirs);
  for (const ConfigPart* part : family.parts) part->write(ours, theirs);
  // The exported config.json must describe exactly this model when it is read again.
  const Config again = config_of(family, theirs, "the exported config.json", {});
  std::vector<std::string> lost;
  for (const Effect effect : {Effect::model, Effect::change, Effect::samples})
    for (const KeyDifference& d : differences(spelled_out(ours), spelled_out(again), effect))
      if (of_model(ours, d.key) && !as_close_as_rounding(d.here, d.there))
        lost.push_back(fmt::format("{} = {} (it would be {})", d.key, d.here, d.there));
  if (!lost.empty())
    bad_input("a config.json of {} cannot say {}: the model is not one of this family", family.name, join(lost, ", "));
  return theirs;
}

}  // namespace sy
