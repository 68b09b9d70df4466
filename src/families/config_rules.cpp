#include "src/families/config_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "src/families/settings.h"
#include "src/params/block_specs.h"
#include "src/text/strings.h"

namespace sy {
namespace {

// Values in layer_types.
constexpr const char *full_type = "full_attention", *sliding_type = "sliding_attention";

void set(KeySettings& settings, std::string_view key, const Json& value) {
  settings.emplace_back(key, setting_text(value));
}
void copy(const Json& hf_config, std::string_view hf_name, KeySettings& settings, std::string_view key) {
  if (const Json* value = find_value(hf_config, hf_name)) set(settings, key, *value);
}

std::string list_text(const Json& numbers) {
  std::vector<std::string> items;
  for (const Json& n : numbers) items.push_back(setting_text(n));
  return join(items, ", ");
}

Index int_or(const Json& hf_config, std::string_view hf_name, Index default_value) {
  const Json* value = find_value(hf_config, hf_name);
  return value ? value->get<std::int64_t>() : default_value;
}
bool bool_or(const Json& hf_config, std::string_view hf_name, bool default_value) {
  const Json* value = find_value(hf_config, hf_name);
  return value ? value->get<bool>() : default_value;
}

bool has_setting(const KeySettings& settings, std::string_view key) {
  return std::any_of(settings.begin(), settings.end(), [&](const auto& setting) { return setting.first == key; });
}

// Sections of the configuration for full and sliding layers. Empty if no layer is of that type.
// Valid after read_windows.
struct LayerSections {
  std::string full, sliding;
};
LayerSections layer_sections(const KeySettings& settings) {
  if (has_setting(settings, "model.pattern")) return {"model", "attention.local"};
  if (has_setting(settings, "model.window")) return {"", "model"};
  return {"model", ""};
}

// Copies an object without the member of this name.
Json without(const Json& object, std::string_view name) {
  Json rest = Json::object();
  for (const Json::Member& m : object.members())
    if (m.name != name) rest.append(m.name, m.value);
  return rest;
}

// ---- rotary positions ----

// YaRN's attention factor, which scales cos and sin (arXiv 2309.00071, section 3.4). m: DeepSeek's
// mscale, or 1.
double yarn_scale(double factor, double m) {
  return factor > 1 ? 0.1 * m * std::log(factor) + 1 : 1;
}

// A key of a scaling, in config.json and here. An absent key has the same default in both.
struct ScalingKey {
  RopeScaling scaling;
  std::string_view hf_name, name;
};
constexpr ScalingKey scaling_keys[] = {
    {RopeScaling::linear, "factor", "rope_factor"},
    {RopeScaling::dynamic, "factor", "rope_factor"},
    {RopeScaling::llama3, "factor", "rope_factor"},
    {RopeScaling::llama3, "original_max_position_embeddings", "rope_original_length"},
    {RopeScaling::llama3, "low_freq_factor", "rope_low_frequency"},
    {RopeScaling::llama3, "high_freq_factor", "rope_high_frequency"},
    {RopeScaling::yarn, "factor", "rope_factor"},
    {RopeScaling::yarn, "original_max_position_embeddings", "rope_original_length"},
    {RopeScaling::yarn, "beta_fast", "rope_beta_fast"},
    {RopeScaling::yarn, "beta_slow", "rope_beta_slow"},
    {RopeScaling::yarn, "truncate", "rope_whole_dimensions"},
    {RopeScaling::yarn, "attention_factor", "rope_attention_factor"},
    {RopeScaling::longrope, "factor", "rope_factor"},
    {RopeScaling::longrope, "original_max_position_embeddings", "rope_original_length"},
    {RopeScaling::longrope, "short_factor", "rope_short_factors"},
    {RopeScaling::longrope, "long_factor", "rope_long_factors"},
    {RopeScaling::longrope, "attention_factor", "rope_attention_factor"},
};
constexpr std::pair<std::string_view, RopeScaling> scaling_names[] = {
    {"default", RopeScaling::none},  {"linear", RopeScaling::linear}, {"dynamic", RopeScaling::dynamic},
    {"llama3", RopeScaling::llama3}, {"yarn", RopeScaling::yarn},     {"longrope", RopeScaling::longrope},
    {"su", RopeScaling::longrope},
};

// Type of a rope_scaling or of rope_parameters, nullptr if absent.
const Json* rope_type(const Json& rope) {
  const Json* type = find_value(rope, "rope_type");
  return type ? type : find_value(rope, "type");
}
RopeScaling scaling_type(const Json& rope) {
  const Json* type = rope_type(rope);
  const std::string name = type ? type->get<std::string>() : "default";
  const auto found = std::find_if(std::begin(scaling_names), std::end(scaling_names),
                                  [&](const auto& row) { return row.first == name; });
  if (found == std::end(scaling_names)) bad_input("a rope scaling of type {} is not known", name);
  return found->second;
}

constexpr std::string_view original = "original_max_position_embeddings", factor = "factor";

// Reads the rotary parameters of one kind of layer. section: "model" or "attention.local".
void read_rope(const Json& hf_config, const Json& rope, const std::string& section, KeySettings& settings) {
  copy(rope, "rope_theta", settings, section + ".rope_theta");
  copy(rope, "partial_rotary_factor", settings, section + ".rope_fraction");
  const RopeScaling scaling = scaling_type(rope);
  if (scaling == RopeScaling::none) return;
  const std::string name = rope_type(rope)->get<std::string>();
  settings.emplace_back(section + ".rope_scaling", name == "su" ? "longrope" : name);
  Json complete = rope;
  const Json& positions = hf_config.at("max_position_embeddings");
  if (!find_value(complete, original))
    complete[original] = find_value(hf_config, original) ? *find_value(hf_config, original) : positions;
  if (!find_value(complete, factor)) complete[factor] = positions.get<double>() / complete.at(original).get<double>();
  if (scaling == RopeScaling::yarn && !find_value(complete, "attention_factor")) {
    const Json *m = find_value(rope, "mscale"), *all = find_value(rope, "mscale_all_dim");
    const double f = complete.at(factor).get<double>();
    if (m && all && m->get<double>() != 0 && all->get<double>() != 0)
      complete["attention_factor"] = yarn_scale(f, m->get<double>()) / yarn_scale(f, all->get<double>());
  }
  if (scaling == RopeScaling::dynamic)
    settings.emplace_back(section + ".rope_original_length", setting_text(complete.at(original)));
  for (const ScalingKey& key : scaling_keys)
    if (const Json* value = key.scaling == scaling ? find_value(complete, key.hf_name) : nullptr)
      settings.emplace_back(fmt::format("{}.{}", section, key.name),
                            value->is_array() ? list_text(*value) : setting_text(*value));
}

// Writes the rotary parameters of one kind of layer to `rope`.
// section: "model" or "attention.local". width: number of elements of a head that can be rotated.
void write_rope(const Config& config, const std::string& section, const RopeSpec& spec, Index width, Json& rope) {
  const auto text_of = [&](std::string_view key) { return value_of(config, fmt::format("{}.{}", section, key)); };
  const auto value_of_key = [&](std::string_view key) {
    return setting_json(fmt::format("model.{}", key), text_of(key));
  };
  put(rope, "rope_theta", spec.theta);
  if (find_value(rope, "partial_rotary_factor") || spec.rotated != width)
    put(rope, "partial_rotary_factor", value_of_key("rope_fraction"));
  const auto name = std::find_if(std::begin(scaling_names), std::end(scaling_names),
                                 [&](const auto& row) { return row.second == spec.scaling; });
  if (name == std::end(scaling_names))
    bad_input("{}.rope_scaling = {} cannot be expressed in a config.json", section, text_of("rope_scaling"));
  if (scaling_type(rope) != spec.scaling || !rope_type(rope)) rope["rope_type"] = std::string(name->first);
  for (const ScalingKey& key : scaling_keys) {
    if (key.scaling != spec.scaling) continue;
    const std::string text = text_of(key.name);
    if (key.hf_name == "attention_factor" && (text == "0" || find_value(rope, "mscale"))) continue;
    if (text.find(',') != text.npos) {
      Json list = Json::array();
      for (const std::string& item : split_list(text)) list.push_back(Json::parse(item).get<double>());
      rope[key.hf_name] = std::move(list);
    } else {
      put(rope, key.hf_name, value_of_key(key.name));
    }
  }
}

// Throws InputError if partial_rotary_factor is not 1: the code of most families ignores the key.
void check_whole_heads(const KeySettings& settings) {
  for (const auto& [key, value] : settings)
    if (key.ends_with(".rope_fraction") && Json::parse(value).get<double>() != 1)
      bad_input("partial_rotary_factor = {}: models of this family rotate whole heads, so that only 1 can be read",
                value);
}

// Returns the RopeSpec of the first layer with rotary positions, empty if there is no such layer.
std::optional<RopeSpec> rope_of(const Config& config) {
  for (const BlockSpec& block : block_specs(config))
    if (block.attention().rope) return block.attention().rope;
  return std::nullopt;
}

// Reads rope_theta and rope_scaling, as transformers 4 writes them.
void read_flat_rope(const Json& hf_config, const std::string& section, KeySettings& settings) {
  copy(hf_config, "rope_theta", settings, section + ".rope_theta");
  if (const Json* scaling = find_value(hf_config, "rope_scaling")) read_rope(hf_config, *scaling, section, settings);
}
// Inverse of read_flat_rope. GPT-NeoX has its own names of two keys, which its table maps.
// width: number of elements of a head that can be rotated.
void write_flat_rope(const Config& config, const std::string& section, const RopeSpec& spec, Index width,
                     Json& hf_config) {
  if (!find_value(hf_config, "rotary_emb_base")) put(hf_config, "rope_theta", spec.theta);
  if (find_value(hf_config, "partial_rotary_factor") || (spec.rotated != width && !find_value(hf_config, "rotary_pct")))
    put(hf_config, "partial_rotary_factor",
        setting_json("model.rope_fraction", value_of(config, section + ".rope_fraction")));
  Json rope = find_value(hf_config, "rope_scaling") ? *find_value(hf_config, "rope_scaling") : Json::object();
  write_rope(config, section, spec, spec.rotated, rope);
  hf_config["rope_scaling"] = spec.scaling == RopeScaling::none ? Json() : without(rope, "rope_theta");
}

}  // namespace

// Writes rope_parameters only if the imported file has it: transformers 4 does not read it, and
// transformers 5 also reads the flat keys.
const ConfigRule partial_rope_rule{
    [](const Json& hf_config, KeySettings& settings) {
      if (const Json* rope = find_value(hf_config, "rope_parameters"))
        read_rope(hf_config, *rope, "model", settings);
      else
        read_flat_rope(hf_config, "model", settings);
      copy(hf_config, "partial_rotary_factor", settings, "model.rope_fraction");
    },
    [](const Config& config, Json& hf_config) {
      const std::optional<RopeSpec> spec = rope_of(config);
      if (!spec) return;
      const Index width = config.model.kv_lora_rank > 0 ? config.model.qk_rope_head_dim : config.model.head_dim;
      // For longrope, transformers 4 reads the key only at the top
      // level.
      if (spec->scaling == RopeScaling::longrope) put(hf_config, original, spec->original_length);
      const Json* rope_parameters = find_value(hf_config, "rope_parameters");
      if (!rope_parameters) return write_flat_rope(config, "model", *spec, width, hf_config);
      Json rope = *rope_parameters;
      const bool at_top_level = find_value(hf_config, "partial_rotary_factor");
      write_rope(config, "model", *spec, at_top_level ? spec->rotated : width, rope);
      if (at_top_level)
        put(hf_config, "partial_rotary_factor",
            setting_json("model.rope_fraction", value_of(config, "model.rope_fraction")));
      hf_config["rope_parameters"] = rope;
    }};

// transformers 4 refuses a rope_scaling with keys other than the type and the factors. transformers
// 5 reads the original length from the top level.
const ConfigRule phi3_rope_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Json* rope = find_value(hf_config, "rope_parameters");
      if (!rope) rope = find_value(hf_config, "rope_scaling");
      const RopeScaling scaling = rope ? scaling_type(*rope) : RopeScaling::none;
      if (scaling != RopeScaling::none && scaling != RopeScaling::longrope)
        bad_input("a rope scaling of type {}: of phi3 models, only longrope can be read", rope_type(*rope)->dump());
      if (scaling == RopeScaling::longrope && !find_value(hf_config, original) && !find_value(*rope, original))
        bad_input("it has no {}, which longrope needs", original);
      partial_rope_rule.read(hf_config, settings);
    },
    [](const Config& config, Json& hf_config) {
      const Json before =
          find_value(hf_config, "rope_scaling") ? *find_value(hf_config, "rope_scaling") : Json::object();
      partial_rope_rule.write(config, hf_config);
      const std::optional<RopeSpec> spec = rope_of(config);
      if (find_value(hf_config, "rope_parameters") || !spec || spec->scaling == RopeScaling::none) return;
      Json rope = hf_config["rope_scaling"];
      const double implied = static_cast<double>(config.model.seq_len) / static_cast<double>(spec->original_length);
      for (const std::string_view key : {std::string_view("rope_type"), original, factor})
        if (!find_value(before, key) && (key != factor || spec->factor == implied)) rope = without(rope, key);
      if (!rope_type(rope)) rope["type"] = "longrope";
      hf_config["rope_scaling"] = rope;
    }};

const ConfigRule rope_rule{[](const Json& hf_config, KeySettings& settings) {
                             partial_rope_rule.read(hf_config, settings);
                             check_whole_heads(settings);
                           },
                           [](const Config& config, Json& hf_config) { partial_rope_rule.write(config, hf_config); }};

const ConfigRule cohere_rope_rule{
    [](const Json& hf_config, KeySettings& settings) {
      rope_rule.read(hf_config, settings);
      if (!has_setting(settings, "model.rope_theta"))
        bad_input("it has no rope_theta: transformers 4 takes 10000 for it, and 5 takes 500000: add it");
    },
    [](const Config& config, Json& hf_config) { rope_rule.write(config, hf_config); }};

// If both keys are absent, models have the scaling of the published ones. transformers 5 reads a
// null in the same way. Therefore no scaling is written as type "default".
const ConfigRule gpt_oss_rope_rule{
    [](const Json& hf_config, KeySettings& settings) {
      settings.emplace_back("model.rope_theta", "150000");
      if (hf_config.contains("rope_parameters") || hf_config.contains("rope_scaling"))
        return rope_rule.read(hf_config, settings);
      const Json published{
          {"rope_type", "yarn"}, {"factor", 32.0}, {"truncate", false}, {"original_max_position_embeddings", 4096}};
      read_rope(hf_config, published, "model", settings);
      rope_rule.read(hf_config, settings);
    },
    [](const Config& config, Json& hf_config) {
      rope_rule.write(config, hf_config);
      if (!find_value(hf_config, "rope_parameters") && !find_value(hf_config, "rope_scaling")) {
        hf_config["rope_scaling"] = Json::object();
        hf_config["rope_scaling"]["rope_type"] = "default";
      }
    }};

// The default rope_theta of Gemma 3 is 1e6 in full layers and 1e4 in sliding ones. The flat keys
// are rope_local_base_freq for sliding layers, and rope_theta and rope_scaling for full ones.
const ConfigRule rope_by_layer_type_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const auto [full, sliding] = layer_sections(settings);
      const Json* rope = find_value(hf_config, "rope_parameters");
      const auto read = [&](const std::string& section, const char* type, const char* theta) {
        if (section.empty()) return;
        settings.emplace_back(section + ".rope_theta", theta);
        settings.emplace_back(section + ".rope_scaling", "none");
        if (rope) {
          if (const Json* own = find_value(*rope, type)) read_rope(hf_config, *own, section, settings);
          return;
        }
        if (type == full_type)
          read_flat_rope(hf_config, section, settings);
        else
          copy(hf_config, "rope_local_base_freq", settings, section + ".rope_theta");
      };
      if (rope && !find_value(*rope, full_type) && !find_value(*rope, sliding_type))
        bad_input("rope_parameters has neither {} nor {}", full_type, sliding_type);
      read(full, full_type, "1000000");
      read(sliding, sliding_type, "10000");
      check_whole_heads(settings);
    },
    [](const Config& config, Json& hf_config) {
      const std::vector<BlockSpec> blocks = block_specs(config);
      const bool scaled_windows = std::any_of(blocks.begin(), blocks.end(), [](const BlockSpec& b) {
        return b.attention().window > 0 && b.attention().rope && b.attention().rope->scaling != RopeScaling::none;
      });
      const bool flat = !find_value(hf_config, "rope_parameters") && !scaled_windows;
      Json by_type = Json::object();
      for (const bool windowed : {false, true}) {
        const auto block = std::find_if(blocks.begin(), blocks.end(), [&](const BlockSpec& b) {
          return b.attention().rope && (b.attention().window > 0) == windowed;
        });
        if (block == blocks.end()) continue;
        const std::string kind = config.model.pattern.kind_of(block - blocks.begin());
        const std::string section = kind.empty() ? "model" : "attention." + kind;
        const RopeSpec& spec = *block->attention().rope;
        const Index width = block->attention().key_width;
        if (!flat) {
          Json rope = Json::object();
          write_rope(config, section, spec, width, rope);
          by_type[windowed ? sliding_type : full_type] = rope;
        } else if (windowed) {
          put(hf_config, "rope_local_base_freq", spec.theta);
        } else {
          write_flat_rope(config, section, spec, width, hf_config);
        }
      }
      if (!flat) hf_config["rope_parameters"] = by_type;
    }};

// ---- windows ----

namespace {

// Types of all layers: layer_types, or the rule `windowed` if the key is absent.
std::vector<std::string> layer_types(const Json& hf_config, const std::function<bool(Index)>& windowed) {
  constexpr Index max_layers = 10000;  // maximum of model.layers
  const Index layers = hf_config.at("num_hidden_layers").get<std::int64_t>();
  if (layers < 1 || layers > max_layers) bad_input("num_hidden_layers = {}: expected 1 to {}", layers, max_layers);
  std::vector<std::string> out;
  if (const Json* types = find_value(hf_config, "layer_types")) {
    out = types->get<std::vector<std::string>>();
    if (std::ssize(out) != layers)
      bad_input("layer_types has {} types, and num_hidden_layers is {}", out.size(), layers);
    return out;
  }
  for (Index i = 0; i < layers; ++i) out.emplace_back(windowed(i) ? sliding_type : full_type);
  return out;
}

// Value of model.pattern: the shortest period of the types.
std::string pattern_of(const std::vector<std::string>& types) {
  std::size_t period = 1;
  const auto repeats = [&] {
    for (std::size_t i = period; i < types.size(); ++i)
      if (types[i] != types[i - period]) return false;
    return true;
  };
  while (!repeats()) ++period;
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < period;) {
    std::size_t end = i;
    while (end < period && types[end] == types[i]) ++end;
    runs.push_back(fmt::format("{}*{}", types[i] == sliding_type ? "local" : "global", end - i));
    i = end;
  }
  return join(runs, ", ");
}

// Value of sliding_window. `absent` if the key is absent, 0 if it is null.
Index window_of(const Json& hf_config, Index absent) {
  return hf_config.contains("sliding_window") ? int_or(hf_config, "sliding_window", 0) : absent;
}

void read_windows(const Json& hf_config, const std::vector<std::string>& types, Index absent, KeySettings& settings) {
  for (const std::string& type : types)
    if (type != full_type && type != sliding_type) bad_input("layer_types: {} is not known", type);
  const auto windowed = std::count(types.begin(), types.end(), sliding_type);
  if (windowed == 0) return;
  const Index size = window_of(hf_config, absent);
  if (size < 1) bad_input("sliding_window = {}: expected 1 or more, as some layers have a window", size);
  const std::string window = fmt::format("{}", size);
  if (windowed == std::ssize(types)) return settings.emplace_back("model.window", window), void();
  settings.emplace_back("model.pattern", pattern_of(types));
  settings.emplace_back("attention.local.window", window);
}

// Writes layer_types and sliding_window. Returns true if a layer has a window.
bool write_windows(const Config& config, Json& hf_config) {
  Json types = Json::array();
  Json window;
  for (const BlockSpec& block : block_specs(config)) {
    types.push_back(std::string(block.attention().window > 0 ? sliding_type : full_type));
    if (block.attention().window > 0) window = block.attention().window;
  }
  hf_config["layer_types"] = types;
  if (!window.is_null()) hf_config["sliding_window"] = window;
  return !window.is_null();
}
void write_types(const Config& config, Json& hf_config) {
  write_windows(config, hf_config);
}

// Every n-th layer is full, the others have a window. named: sliding_window_pattern overrides
// `every`. absent: default window.
template <Index every, bool named, Index absent>
void read_full_every(const Json& hf_config, KeySettings& settings) {
  const Index n = named ? int_or(hf_config, "sliding_window_pattern", every) : every;
  if (n < 1) bad_input("sliding_window_pattern = {}: expected 1 or more", n);
  read_windows(hf_config, layer_types(hf_config, [n](Index i) { return (i + 1) % n != 0; }), absent, settings);
}

template <Index absent>
void read_one_window(const Json& hf_config, KeySettings& settings) {
  const bool has = window_of(hf_config, absent) > 0;
  read_windows(hf_config, layer_types(hf_config, [has](Index) { return has; }), absent, settings);
}
void write_one_window(const Config& config, Json& hf_config) {
  const bool listed = find_value(hf_config, "layer_types");
  if (!write_windows(config, hf_config)) hf_config["sliding_window"] = Json();
  if (!listed) hf_config = without(hf_config, "layer_types");
}

constexpr Index qwen_window = 4096;  // default of sliding_window
template <bool (*windowed)(Index layer, Index max_window_layers)>
void read_used_windows(const Json& hf_config, KeySettings& settings) {
  const Index bound = int_or(hf_config, "max_window_layers", 28);
  if (!bool_or(hf_config, "use_sliding_window", false) || window_of(hf_config, qwen_window) == 0) return;
  read_windows(hf_config, layer_types(hf_config, [&](Index layer) { return windowed(layer, bound); }), qwen_window,
               settings);
}
void write_used_windows(const Config& config, Json& hf_config) {
  hf_config["use_sliding_window"] = write_windows(config, hf_config);
}
bool from_bound(Index layer, Index bound) {
  return layer >= bound;
}
bool even_below_bound(Index layer, Index bound) {
  return layer % 2 == 0 && layer < bound;
}

}  // namespace

const ConfigRule window_rule{read_one_window<0>, write_one_window};
const ConfigRule mistral_window_rule{read_one_window<4096>, write_one_window};
const ConfigRule gemma2_window_rule{read_full_every<2, false, 4096>, write_types};
const ConfigRule gpt_oss_window_rule{read_full_every<2, false, 128>, write_types};
const ConfigRule gemma3_window_rule{read_full_every<6, true, 4096>, write_types};
const ConfigRule cohere2_window_rule{[](const Json& hf_config, KeySettings& settings) {
                                       read_full_every<4, true, 4096>(hf_config, settings);
                                       const auto [full, sliding] = layer_sections(settings);
                                       if (full.empty()) return;
                                       const std::string section = sliding.empty() ? "model" : "attention.global";
                                       settings.emplace_back(section + ".position", "none");
                                     },
                                     write_types};
const ConfigRule qwen_window_rule{read_used_windows<from_bound>, write_used_windows};
const ConfigRule qwen2_moe_window_rule{read_used_windows<even_below_bound>, write_used_windows};
const ConfigRule qwen3_moe_window_rule{[](const Json& hf_config, KeySettings& settings) {
                                         if (bool_or(hf_config, "use_sliding_window", false))
                                           settings.emplace_back("model.window",
                                                                 fmt::format("{}", window_of(hf_config, qwen_window)));
                                       },
                                       [](const Config& config, Json& hf_config) {
                                         const Index window = block_specs(config).front().attention().window;
                                         hf_config["use_sliding_window"] = window > 0;
                                         if (window > 0) hf_config["sliding_window"] = window;
                                       }};

// ---- single families ----

const ConfigRule attention_scale_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const double scalar = hf_config.at("query_pre_attn_scalar").get<double>();
      if (!(scalar > 0)) bad_input("query_pre_attn_scalar = {}: expected more than 0", scalar);
      settings.emplace_back("model.attention_scale", fmt::format("{}", 1 / std::sqrt(scalar)));
    },
    [](const Config& config, Json& hf_config) {
      const double scale = config.model.attention_scale > 0 ? config.model.attention_scale
                                                            : 1 / std::sqrt(static_cast<double>(config.model.head_dim));
      double scalar = 1 / (scale * scale);
      if (std::abs(scalar - std::round(scalar)) < 1e-9 * scalar) scalar = std::round(scalar);
      put(hf_config, "query_pre_attn_scalar",
          scalar == std::round(scalar) ? Json(static_cast<Index>(scalar)) : Json(scalar));
    }};

namespace {

// Attention scale of a config.json with mscale_all_dim. 0 if the key is absent or 0.
double latent_scale(const Json& hf_config) {
  const Json* rope = find_value(hf_config, "rope_parameters");
  if (!rope) rope = find_value(hf_config, "rope_scaling");
  const Json* all = rope ? find_value(*rope, "mscale_all_dim") : nullptr;
  if (!all || all->get<double>() == 0) return 0;
  const Index width = int_or(hf_config, "qk_nope_head_dim", 0) + int_or(hf_config, "qk_rope_head_dim", 0);
  const double mscale = yarn_scale(rope->at("factor").get<double>(), all->get<double>());
  return mscale * mscale / std::sqrt(static_cast<double>(width));
}

// Inverse of yarn_scale with respect to m, rounded to 12 digits. A rounded scale of a configuration
// then gives 1 and not 1.0000000000000002.
double yarn_mscale(double rope_factor, double scale) {
  return Json::parse(fmt::format("{:.12g}", (scale - 1) / (0.1 * std::log(rope_factor)))).get<double>();
}

}  // namespace

// mscale_all_dim multiplies the scores by its squared yarn_scale, and divides cos and sin by that
// scale.
const ConfigRule latent_attention_scale_rule{
    [](const Json& hf_config, KeySettings& settings) {
      if (const double scale = latent_scale(hf_config); scale != 0)
        settings.emplace_back("model.attention_scale", fmt::format("{}", scale));
    },
    [](const Config& config, Json& hf_config) {
      const std::optional<RopeSpec> spec = rope_of(config);
      const double scale = config.model.attention_scale;
      if (!spec || spec->scaling != RopeScaling::yarn || spec->factor <= 1 || scale == 0) return;
      // The imported keys already express this scale.
      if (std::abs(latent_scale(hf_config) - scale) <= 1e-12 * scale) return;
      Json& rope = hf_config[find_value(hf_config, "rope_parameters") ? "rope_parameters" : "rope_scaling"];
      const double all = std::sqrt(scale * std::sqrt(static_cast<double>(config.model.key_width())));
      rope["mscale_all_dim"] = yarn_mscale(spec->factor, all);
      const double m = yarn_mscale(spec->factor, spec->attention_factor * all);
      // Without mscale, the default or attention_factor applies.
      if (config.model.rope_attention_factor == 0 || m == 0) return;
      rope["mscale"] = m;
      rope = without(rope, "attention_factor");
    }};

const ConfigRule greedy_top_k_rule{[](const Json& hf_config, KeySettings& settings) {
                                     const Json* method = find_value(hf_config, "topk_method");
                                     if (method && *method != Json("greedy")) return;
                                     settings.emplace_back("moe.groups", "1");
                                     settings.emplace_back("moe.topk_groups", "1");
                                   },
                                   [](const Config& config, Json& hf_config) {
                                     hf_config["topk_method"] =
                                         config.moe.groups > 1 ? "group_limited_greedy" : "greedy";
                                   }};

// If output_router_logits is true, transformers adds router_aux_loss_coef * E * sum_i f_i P_i to
// the loss, over all layers jointly. Our loss has the factor E / top_k (load_balancing.h).
const ConfigRule router_aux_loss_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Json* factor = find_value(hf_config, "router_aux_loss_coef");
      if (!bool_or(hf_config, "output_router_logits", false)) return;
      if (!factor) bad_input("it has no router_aux_loss_coef, which output_router_logits needs");
      const auto top_k = static_cast<double>(hf_config.at("num_experts_per_tok").get<std::int64_t>());
      settings.emplace_back("moe.aux_loss", fmt::format("{}", factor->get<double>() * top_k));
      settings.emplace_back("moe.aux_layers", "joint");
      settings.emplace_back("moe.aux_scope", "global_batch");
    },
    [](const Config& config, Json& hf_config) {
      const auto top_k = static_cast<double>(config.moe.top_k);
      const Json* before = find_value(hf_config, "router_aux_loss_coef");
      const bool joint = config.moe.aux_layers == AuxLayers::joint && config.moe.aux_loss > 0;
      const bool same = before && before->get<double>() * top_k == config.moe.aux_loss;
      if (joint && !same) hf_config["router_aux_loss_coef"] = config.moe.aux_loss / top_k;
      if (joint || (before && find_value(hf_config, "output_router_logits"))) hf_config["output_router_logits"] = joint;
    }};

const ConfigRule rotary_dim_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Index head = hf_config.at("n_embd").get<std::int64_t>() / hf_config.at("n_head").get<std::int64_t>();
      const Index rotated =
          hf_config.contains("rotary_dim") ? int_or(hf_config, "rotary_dim", head) : std::min<Index>(64, head);
      // The 1e-6 ensures that fraction * width does not round to just below `rotated`.
      settings.emplace_back(
          "model.rope_fraction",
          rotated >= head ? "1" : fmt::format("{}", (static_cast<double>(rotated) + 1e-6) / static_cast<double>(head)));
    },
    [](const Config& config, Json& hf_config) {
      if (const auto spec = rope_of(config)) hf_config["rotary_dim"] = spec->rotated;
    }};

const ConfigRule gpt2_ffn_width_rule{
    [](const Json& hf_config, KeySettings& settings) {
      settings.emplace_back("model.d_ff", fmt::format("{}", int_or(hf_config, "n_inner",
                                                                   4 * hf_config.at("n_embd").get<std::int64_t>())));
    },
    [](const Config& config, Json& hf_config) {
      const bool usual = config.model.d_ff == 4 * config.model.d_model;
      hf_config["n_inner"] = usual && !find_value(hf_config, "n_inner") ? Json() : Json(config.model.d_ff);
    }};

// The default pad_token_id of transformers is 32000, which fails for a smaller vocabulary.
const ConfigRule phi3_pad_token_rule{[](const Json&, KeySettings&) {},
                                     [](const Config& config, Json& hf_config) {
                                       if (config.model.vocab <= 32000 && !hf_config.contains("pad_token_id"))
                                         hf_config["pad_token_id"] = Json();
                                     }};

const ConfigRule bias_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const bool attention = bool_or(hf_config, "attention_bias", false), mlp = bool_or(hf_config, "mlp_bias", false);
      settings.emplace_back("model.bias", attention ? mlp ? "all" : "attention" : mlp ? "mlp" : "none");
    },
    [](const Config& config, Json& hf_config) {
      const Biases bias = config.model.bias;
      hf_config["attention_bias"] = bias == Biases::all || bias == Biases::attention;
      hf_config["mlp_bias"] = bias == Biases::all || bias == Biases::mlp;
    }};

const ConfigRule opt_embedding_width_rule{
    [](const Json& hf_config, KeySettings&) {
      const std::int64_t width = hf_config.at("hidden_size").get<std::int64_t>();
      if (const Index projected = int_or(hf_config, "word_embed_proj_dim", width); projected != width)
        bad_input("word_embed_proj_dim = {}: only hidden_size = {} can be read, which needs no projections", projected,
                  width);
    },
    [](const Config& config, Json& hf_config) { hf_config["word_embed_proj_dim"] = config.model.d_model; }};

const ConfigRule falcon_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const bool new_architecture = bool_or(hf_config, "new_decoder_architecture", false);
      const Index heads = hf_config.at("num_attention_heads").get<std::int64_t>();
      const Index kv = new_architecture                          ? int_or(hf_config, "num_kv_heads", heads)
                       : bool_or(hf_config, "multi_query", true) ? 1
                                                                 : heads;
      // Falcon's code adds the ALiBi biases before it divides the scores by sqrt(head_dim).
      const double head = hf_config.at("hidden_size").get<double>() / static_cast<double>(heads);
      if (bool_or(hf_config, "alibi", false))
        settings.emplace_back("model.alibi_scale", fmt::format("{}", 1 / std::sqrt(head)));
      settings.emplace_back("model.parallel_block",
                            new_architecture || bool_or(hf_config, "parallel_attn", true) ? "true" : "false");
      settings.emplace_back("model.kv_heads", fmt::format("{}", kv));
      settings.emplace_back("model.parallel_norms",
                            new_architecture && int_or(hf_config, "num_ln_in_parallel_attn", 2) == 2 ? "2" : "1");
      settings.emplace_back(
          "model.d_ff",
          fmt::format("{}", int_or(hf_config, "ffn_hidden_size", 4 * hf_config.at("hidden_size").get<std::int64_t>())));
    },
    [](const Config& config, Json& hf_config) {
      const bool two = config.model.parallel_norms == 2, serial = !config.model.parallel_block;
      const bool grouped = config.model.kv_heads != 1 && config.model.kv_heads != config.model.heads;
      const bool new_architecture =
          !serial && (two || grouped || bool_or(hf_config, "new_decoder_architecture", false));
      hf_config["new_decoder_architecture"] = new_architecture;
      hf_config["parallel_attn"] = !serial;
      if (new_architecture) {  // the two kinds of files have different keys for kv heads
        put(hf_config, "num_kv_heads", config.model.kv_heads);
        hf_config["num_ln_in_parallel_attn"] = two ? 2 : 1;
      } else {
        hf_config["multi_query"] = config.model.kv_heads == 1;
      }
      hf_config["ffn_hidden_size"] = config.model.d_ff;
    }};

const ConfigRule sparse_step_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Index step = int_or(hf_config, "decoder_sparse_step", 1);
      Index dense = step - 1;  // layers i with (i + 1) % step == 0 are sparse
      std::vector<std::int64_t> mlp_only;
      if (const Json* list = find_value(hf_config, "mlp_only_layers"))
        mlp_only = list->get<std::vector<std::int64_t>>();
      std::sort(mlp_only.begin(), mlp_only.end());
      mlp_only.erase(std::unique(mlp_only.begin(), mlp_only.end()), mlp_only.end());
      std::vector<std::string> others;
      const Index layers = int_or(hf_config, "num_hidden_layers", 0);
      for (const std::int64_t layer : mlp_only)
        if (step == 1 && layer == dense)
          ++dense;
        else if (layer >= 0 && layer < layers && (layer + 1) % std::max<Index>(step, 1) == 0)
          others.push_back(fmt::format("{}", layer));
      settings.emplace_back("moe.every", fmt::format("{}", step));
      settings.emplace_back("moe.first_dense", fmt::format("{}", dense));
      if (!others.empty()) settings.emplace_back("moe.dense_layers", join(others, ", "));
    },
    [](const Config& config, Json& hf_config) {
      hf_config["decoder_sparse_step"] = config.moe.every;
      Json mlp_only = Json::array();
      for (Index layer = 0; layer < config.model.layers; ++layer)
        if (!config.is_moe(layer) && (layer + 1) % config.moe.every == 0) mlp_only.push_back(layer);
      hf_config["mlp_only_layers"] = mlp_only;
    }};

}  // namespace sy
