#include "src/config/keys.h"

#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "src/text/ini.h"
#include "src/text/json.h"
#include "src/text/strings.h"
#include "src/text/table.h"

namespace sy {
namespace {

// The key that sets a value, and the value's text. values_of_kinds() lists them by kind and by key
// of [model]. The kind is "" if all layers have one kind.
struct KeyText {
  std::string key, text;
};
std::map<std::string, std::map<std::string_view, KeyText>> values_of_kinds(const Config& c) {
  std::map<std::string, std::map<std::string_view, KeyText>> out;
  for_each_key(c, [&](const Row& row, const auto& value) {
    if (row.traits.by_kind.empty() || (row.kind != nullptr) == c.kinds.empty()) return;
    out[row.kind ? row.kind->name : ""][row.model_key] = {row.source_key(), show(value)};
  });
  return out;
}

}  // namespace

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

std::string without_exponent(const std::string& text) {
  const auto e = text.find_first_of("eE");
  if (e == text.npos || text.substr(0, e).find_first_of("0123456789") == text.npos) return text;
  const bool plus = text.find('+', e) == e + 1;
  int exponent = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + e + 1 + (plus ? 1 : 0), end, exponent);
  if (read.ec != std::errc() || read.ptr != end || std::abs(exponent) > 99) return text;
  std::string digits = text.substr(0, e);
  if (const auto point = digits.find('.'); point != digits.npos) {
    exponent -= static_cast<int>(digits.size() - point) - 1;
    digits.erase(point, 1);
  }
  for (; exponent > 0; --exponent) digits += '0';
  for (; exponent < 0 && digits.ends_with('0'); ++exponent) digits.pop_back();
  return exponent == 0 ? digits : text;
}

std::string show(const Pattern& pattern) {
  std::vector<std::string> texts;
  for (const Pattern::Segment& segment : pattern.segments)
    texts.push_back(segment.layers == 1 ? segment.kind : fmt::format("{}*{}", segment.kind, segment.layers));
  return join(texts, ", ");
}

bool read(const std::string& text, Pattern& out) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", others = "0123456789_-";
  constexpr Index max_layers = 10000;
  Index layers = 0;
  out.segments.clear();
  for (const std::string& item : split_list(text)) {
    const std::size_t star = item.find('*');
    Pattern::Segment segment{std::string(trimmed(item.substr(0, star)))};
    const bool named = !segment.kind.empty() && letters.find(segment.kind.front()) != letters.npos &&
                       segment.kind.find_first_not_of(std::string(letters).append(others)) == segment.kind.npos;
    const bool counted = star == item.npos || read(std::string(trimmed(item.substr(star + 1))), segment.layers);
    if (!named || !counted || segment.layers < 1 || segment.layers > max_layers - layers) return false;
    layers += segment.layers;
    out.segments.push_back(std::move(segment));
  }
  return !text.ends_with(',');
}

std::string show(const std::vector<double>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ", "));
}

bool read(const std::string& text, std::vector<double>& out) {
  out.clear();
  for (const std::string& item : split_list(text)) {
    double number = 0;
    if (!read(item, number)) return false;
    out.push_back(number);
  }
  return !text.ends_with(',');
}

const Config::Model& Config::model_of(Index layer) const {
  if (kinds.empty()) return model;
  const std::string& name = model.pattern.kind_of(layer);
  return std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) { return kind.name == name; })->model;
}

bool Config::is_moe(Index layer) const {
  const auto& dense = moe.dense_layers;
  return moe.experts > 0 && layer >= moe.first_dense && (layer - moe.first_dense) % moe.every == 0 &&
         std::find(dense.begin(), dense.end(), static_cast<double>(layer)) == dense.end();
}

DType Config::dtype() const {
  return run.dtype == "bf16" ? DType::bf16 : DType::f32;
}

namespace {

FfnActivation activation_of(const Config::Model& m, const std::string& ffn) {
  for (const FfnName& f : ffn_names)
    if (f.name == ffn)
      return {f.kind.act, f.kind.gated, static_cast<float>(m.swish_beta), static_cast<float>(m.ffn_clamp)};
  return {};
}

}  // namespace

FfnActivation Config::ffn_activation() const {
  return activation_of(model, model.ffn);
}

FfnActivation Config::expert_activation() const {
  return activation_of(model, moe.ffn);
}

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> k;
    Config defaults;
    defaults.kinds.push_back({"NAME", {}, {}});
    for_each_key(defaults, [&]<class T>(const Row& row, const T& value) {
      const std::string help = row.kind ? fmt::format("replaces {} in layers of kind NAME", row.model_key) : row.help;
      ConfigKey key{row.name, accepts<T>(), row.kind ? "" : show(value), help, {}, {}};
      const Bounds& bounds = row.traits.bounds;
      if (std::isfinite(bounds.low))
        key.range = bounds.high < big ? fmt::format("from {} to {}", bounds.low, bounds.high)
                                      : fmt::format("from {} on", bounds.low);
      key.values.assign(row.traits.values.begin(), row.traits.values.end());
      if constexpr (std::is_same_v<T, bool>) key.values = {"true", "false"};
      if constexpr (std::is_enum_v<T>)
        for (const auto& entry : EnumNames<T>::table) key.values.emplace_back(entry.name);
      k.push_back(std::move(key));
    });
    return k;
  }();
  return keys;
}

namespace {

// Writes all keys as INI. comment(key, value) follows each line; an empty comment is omitted.
template <class Comment>
std::string ini_text(const Config& config, Comment&& comment) {
  std::string out, section;
  for_each_key(config, [&](const Row& row, const auto& value) {
    if (!row.sets_value()) return;
    const auto dot = row.name.rfind('.');
    if (row.name.substr(0, dot) != section) {
      section = row.name.substr(0, dot);
      out += (out.empty() ? "[" : "\n[") + section + "]\n";
    }
    const std::string line = row.name.substr(dot + 1) + " = " + ini_value(show(value));
    const std::string after = comment(row.name, show(value));
    out += after.empty() ? line + "\n" : fmt::format("{:<32} # {}\n", line, after);
  });
  return out;
}

// The origin of a value, for display.
std::string origin_of(const std::string& key, const std::string& value, const ConfigOrigins& origins) {
  if (const auto origin = origins.find(key); origin != origins.end()) return visible(origin->second);
  const std::vector<ConfigKey>& keys = config_keys();
  const auto known = std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& k) { return k.name == key; });
  return known != keys.end() && known->default_value == value ? "default" : "default, by other keys";
}

}  // namespace

std::string to_ini(const Config& config) {
  return ini_text(config, [](const std::string&, const std::string&) { return std::string(); });
}

std::string to_ini(const Config& config, const ConfigOrigins& origins) {
  return ini_text(config,
                  [&](const std::string& key, const std::string& value) { return origin_of(key, value, origins); });
}

Json to_json(const Config& config, const ConfigOrigins& origins) {
  Json out = Json::object();
  for_each_key(config, [&]<class T>(const Row& row, const T& value) {
    if (!row.sets_value()) return;
    Json typed;
    if constexpr (std::is_arithmetic_v<T>)
      typed = value;
    else
      typed = show(value);
    out[row.name] = Json{{"value", typed}, {"origin", origin_of(row.name, show(value), origins)}};
  });
  return out;
}

std::vector<RankSetting> rank_settings(const Config& config) {
  std::vector<RankSetting> out;
  for_each_key(config, [&](const Row& row, const auto& value) {
    if (row.sets_value() && row.name != "data.path") out.push_back({row.name, show(value)});
  });
  return out;
}

std::string value_of(const Config& config, std::string_view key) {
  std::optional<std::string> text;
  for_each_key(config, [&](const Row& row, const auto& value) {
    if (row.name == key) text = show(value);
  });
  SY_ASSERT(text, "no key {}", key);
  return *text;
}

std::vector<KeyDifference> differences(const Config& here, const Config& there, ResumePolicy policy) {
  std::map<std::string, std::string> there_values;
  for_each_key(there, [&](const Row& row, const auto& value) { there_values[row.name] = show(value); });
  // The pairs of kinds that some layer has here and there, and the first such layer.
  std::map<std::pair<std::string, std::string>, Index> pairs;
  for (Index layer = 0; layer < std::min(here.model.layers, there.model.layers); ++layer)
    pairs.try_emplace({here.model.pattern.kind_of(layer), there.model.pattern.kind_of(layer)}, layer);
  const auto here_by_kind = values_of_kinds(here), there_by_kind = values_of_kinds(there);

  std::vector<KeyDifference> out;
  for_each_key(here, [&](const Row& row, const auto& value) {
    if (row.kind || row.traits.on_resume != policy) return;
    if (row.traits.by_kind.empty()) {
      if (show(value) != there_values[row.name]) out.push_back({row.name, show(value), there_values[row.name]});
      return;
    }
    std::set<std::string> reported;
    for (const auto& [kinds, layer] : pairs) {
      const KeyText &a = here_by_kind.at(kinds.first).at(row.model_key),
                    &b = there_by_kind.at(kinds.second).at(row.model_key);
      if (a.text != b.text && reported.insert(a.key).second)
        out.push_back({a.key == b.key ? a.key : fmt::format("{} of layer {}", a.key, layer), a.text, b.text});
    }
  });
  return out;
}

}  // namespace sy
