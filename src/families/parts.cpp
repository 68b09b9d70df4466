#include "src/families/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "src/families/settings.h"
#include "src/params/block_specs.h"
#include "src/text/words.h"

namespace sy {
namespace {

// Values in layer_types.
constexpr const char *full_type = "full_attention", *sliding_type = "sliding_attention";

void set(KeySettings& ours, std::string_view key, const Json& value) {
  ours.emplace_back(key, setting_text(value));
}
void copy(const Json& theirs, std::string_view key, KeySettings& ours, std::string_view own) {
  if (const Json* value = given(theirs, key)) set(ours, own, *value);
}

std::string list_text(const Json& numbers) {
  std::vector<std::string> items;
  for (const Json& n : numbers) items.push_back(setting_text(n));
  return join(items, ", ");
}

Index count(const Json& theirs, std::string_view key, Index otherwise) {
  const Json* value = given(theirs, key);
  return value ? value->get<std::int64_t>() : otherwise;
}
bool flag(const Json& theirs, std::string_view key, bool otherwise) {
  const Json* value = given(theirs, key);
  return value ? value->get<bool>() : otherwise;
}

bool has_setting(const KeySettings& ours, std::string_view key) {
  return std::any_of(ours.begin(), ours.end(), [&](const auto& setting) { return setting.first == key; });
}

// Sections of the configuration for full and sliding layers. Empty if no layer is of that type.
// Valid after read_windows.
struct LayerSections {
  std::string full, sliding;
};
LayerSections layer_sections(const KeySettings& ours) {
  if (has_setting(ours, "model.pattern")) return {"model", "attention.local"};
  if (has_setting(ours, "model.window")) return {"", "model"};
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
  std::string_view theirs, ours;
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
  const Json* type = given(rope, "rope_type");
  return type ? type : given(rope, "type");
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
void read_rope(const Json& theirs, const Json& rope, const std::string& section, KeySettings& ours) {
  copy(rope, "rope_theta", ours, section + ".rope_theta");
  copy(rope, "partial_rotary_factor", ours, section + ".rope_fraction");
  const RopeScaling scaling = scaling_type(rope);
  if (scaling == RopeScaling::none) return;
  const std::string name = rope_type(rope)->get<std::string>();
  ours.emplace_back(section + ".rope_scaling", name == "su" ? "longrope" : name);
  Json complete = rope;
  const Json& positions = theirs.at("max_position_embeddings");
  if (!given(complete, original)) complete[original] = given(theirs, original) ? *given(theirs, original) : positions;
  if (!given(complete, factor)) complete[factor] = positions.get<double>() / complete.at(original).get<double>();
  if (scaling == RopeScaling::yarn && !given(complete, "attention_factor")) {
    const Json *m = given(rope, "mscale"), *all = given(rope, "mscale_all_dim");
    const double f = complete.at(factor).get<double>();
    if (m && all && m->get<double>() != 0 && all->get<double>() != 0)
      complete["attention_factor"] = yarn_scale(f, m->get<double>()) / yarn_scale(f, all->get<double>());
  }
  if (scaling == RopeScaling::dynamic)
    ours.emplace_back(section + ".rope_original_length", setting_text(complete.at(original)));
  for (const ScalingKey& key : scaling_keys)
    if (const Json* value = key.scaling == scaling ? given(complete, key.theirs) : nullptr)
      ours.emplace_back(fmt::format("{}.{}", section, key.ours),
                        value->is_array() ? list_text(*value) : setting_text(*value));
}

// Writes the rotary parameters of one kind of layer to `rope`.
// section: "model" or "attention.local". width: number of elements of a head that can be rotated.
void write_rope(const Config& ours, const std::string& section, const RopeSpec& spec, Index width, Json& rope) {
  const auto text_of = [&](std::string_view key) { return value_of(ours, fmt::format("{}.{}", section, key)); };
  const auto value_of_key = [&](std::string_view key) {
    return setting_json(fmt::format("model.{}", key), text_of(key));
  };
  put(rope, "rope_theta", spec.theta);
  if (given(rope, "partial_rotary_factor") || spec.rotated != width)
    put(rope, "partial_rotary_factor", value_of_key("rope_fraction"));
  const auto name = std::find_if(std::begin(scaling_names), std::end(scaling_names),
                                 [&](const auto& row) { return row.second == spec.scaling; });
  if (name == std::end(scaling_names))
    bad_input("{}.rope_scaling = {} has no words in a config.json", section, text_of("rope_scaling"));
  if (scaling_type(rope) != spec.scaling || !rope_type(rope)) rope["rope_type"] = std::string(name->first);
  for (const ScalingKey& key : scaling_keys) {
    if (key.scaling != spec.scaling) continue;
    const std::string text = text_of(key.ours);
    if (key.theirs == "attention_factor" && (text == "0" || given(rope, "mscale"))) continue;
    if (text.find(',') != text.npos) {
      Json list = Json::array();
      for (const std::string& item : split_list(text)) list.push_back(Json::parse(item).get<double>());
      rope[key.theirs] = std::move(list);
    } else {
      put(rope, key.theirs, value_of_key(key.ours));
    }
  }
}

// Throws InputError if partial_rotary_factor is not 1: the code of most families ignores the key.
void check_whole_heads(const KeySettings& ours) {
  for (const auto& [key, value] : ours)
    if (key.ends_with(".rope_fraction") && Json::parse(value).get<double>() != 1)
      bad_input("partial_rotary_factor = {}: models of this family rotate whole heads, so that only 1 can be read",
                value);
}

// Returns the RopeSpec of the first layer with rotary positions, empty if there is no such layer.
std::optional<RopeSpec> rope_of(const Config& ours) {
  for (const BlockSpec& block : block_specs(ours))
    if (block.attention.rope) return block.attention.rope;
  return std::nullopt;
}

// Reads rope_theta and rope_scaling, as transformers 4 writes them.
void read_flat_rope(const Json& theirs, const std::string& section, KeySettings& ours) {
  copy(theirs, "rope_theta", ours, section + ".rope_theta");
  if (const Json* scaling = given(theirs, "rope_scaling")) read_rope(theirs, *scaling, section, ours);
}
// Inverse of read_flat_rope. GPT-NeoX has its own names of two keys, which its table maps.
// width: number of elements of a head that can be rotated.
void write_flat_rope(const Config& ours, const std::string& section, const RopeSpec& spec, Index width, Json& theirs) {
  if (!given(theirs, "rotary_emb_base")) put(theirs, "rope_theta", spec.theta);
  if (given(theirs, "partial_rotary_factor") || (spec.rotated != width && !given(theirs, "rotary_pct")))
    put(theirs, "partial_rotary_factor",
        setting_json("model.rope_fraction", value_of(ours, section + ".rope_fraction")));
  Json rope = given(theirs, "rope_scaling") ? *given(theirs, "rope_scaling") : Json::object();
  write_rope(ours, section, spec, spec.rotated, rope);
  theirs["rope_scaling"] = spec.scaling == RopeScaling::none ? Json() : without(rope, "rope_theta");
}

}  // namespace

// Writes rope_parameters only if the imported file has it: transformers 4 does not read it, and
// transformers 5 also reads the older keys.
const ConfigPart partial_rope_part{[](const Json& theirs, KeySettings& ours) {
                                     if (const Json* rope = given(theirs, "rope_parameters"))
                                       read_rope(theirs, *rope, "model", ours);
                                     else
                                       read_flat_rope(theirs, "model", ours);
                                     copy(theirs, "partial_rotary_factor", ours, "model.rope_fraction");
                                   },
                                   [](const Config& ours, Json& theirs) {
                                     const std::optional<RopeSpec> spec = rope_of(ours);
                                     if (!spec) return;
                                     const Index width =
                                         ours.model.kv_latent > 0 ? ours.model.rope_head_dim : ours.model.head_dim;
                                     // For longrope, transformers 4 reads the key only at the top
                                     // level.
                                     if (spec->scaling == RopeScaling::longrope)
                                       put(theirs, original, spec->original_length);
                                     const Json* together = given(theirs, "rope_parameters");
                                     if (!together) return write_flat_rope(ours, "model", *spec, width, theirs);
                                     Json rope = *together;
                                     const bool beside = given(theirs, "partial_rotary_factor");
                                     write_rope(ours, "model", *spec, beside ? spec->rotated : width, rope);
                                     if (beside)
                                       put(theirs, "partial_rotary_factor",
                                           setting_json("model.rope_fraction", value_of(ours, "model.rope_fraction")));
                                     theirs["rope_parameters"] = rope;
                                   }};

// transformers 4 refuses a rope_scaling with keys other than the type and the factors. transformers
// 5 reads the original length from the top level.
const ConfigPart phi3_rope_part{
    [](const Json& theirs, KeySettings& ours) {
      const Json* rope = given(theirs, "rope_parameters");
      if (!rope) rope = given(theirs, "rope_scaling");
      const RopeScaling scaling = rope ? scaling_type(*rope) : RopeScaling::none;
      if (scaling != RopeScaling::none && scaling != RopeScaling::longrope)
        bad_input("a rope scaling of type {}: of phi3 models, only longrope can be read", rope_type(*rope)->dump());
      if (scaling == RopeScaling::longrope && !given(theirs, original) && !given(*rope, original))
        bad_input("it has no {}, which longrope needs", original);
      partial_rope_part.read(theirs, ours);
    },
    [](const Config& ours, Json& theirs) {
      const Json before = given(theirs, "rope_scaling") ? *given(theirs, "rope_scaling") : Json::object();
      partial_rope_part.write(ours, theirs);
      const std::optional<RopeSpec> spec = rope_of(ours);
      if (given(theirs, "rope_parameters") || !spec || spec->scaling == RopeScaling::none) return;
      Json rope = theirs["rope_scaling"];
      const double implied = static_cast<double>(ours.model.seq_len) / static_cast<double>(spec->original_length);
      for (const std::string_view key : {std::string_view("rope_type"), original, factor})
        if (!given(before, key) && (key != factor || spec->factor == implied)) rope = without(rope, key);
      if (!rope_type(rope)) rope["type"] = "longrope";
      theirs["rope_scaling"] = rope;
    }};

const ConfigPart rope_part{[](const Json& theirs, KeySettings& ours) {
                             partial_rope_part.read(theirs, ours);
                             check_whole_heads(ours);
                           },
                           [](const Config& ours, Json& theirs) { partial_rope_part.write(ours, theirs); }};

const ConfigPart cohere_rope_part{
    [](const Json& theirs, KeySettings& ours) {
      rope_part.read(theirs, ours);
      if (!has_setting(ours, "model.rope_theta"))
        bad_input("it has no rope_theta: transformers 4 takes 10000 for it, and 5 takes 500000: add it");
    },
    [](const Config& ours, Json& theirs) { rope_part.write(ours, theirs); }};

// If both keys are absent, models have the scaling of the published ones. transformers 5 reads a
// null in the same way. Therefore no scaling is written as type "default".
const ConfigPart gpt_oss_rope_part{
    [](const Json& theirs, KeySettings& ours) {
      ours.emplace_back("model.rope_theta", "150000");
      if (theirs.contains("rope_parameters") || theirs.contains("rope_scaling")) return rope_part.read(theirs, ours);
      const Json published{
          {"rope_type", "yarn"}, {"factor", 32.0}, {"truncate", false}, {"original_max_position_embeddings", 4096}};
      read_rope(theirs, published, "model", ours);
      rope_part.read(theirs, ours);
    },
    [](const Config& ours, Json& theirs) {
      rope_part.write(ours, theirs);
      if (!given(theirs, "rope_parameters") && !given(theirs, "rope_scaling")) {
        theirs["rope_scaling"] = Json::object();
        theirs["rope_scaling"]["rope_type"] = "default";
      }
    }};

// The default rope_theta of Gemma 3 is 1e6 in full layers and 1e4 in sliding ones. The older keys
// are rope_local_base_freq for sliding layers, and rope_theta and rope_scaling for full ones.
const ConfigPart rope_by_kind_part{
    [](const Json& theirs, KeySettings& ours) {
      const auto [full, sliding] = layer_sections(ours);
      const Json* rope = given(theirs, "rope_parameters");
      const auto read = [&](const std::string& section, const char* type, const char* theta) {
        if (section.empty()) return;
        ours.emplace_back(section + ".rope_theta", theta);
        ours.emplace_back(section + ".rope_scaling", "none");
        if (rope) {
          if (const Json* own = given(*rope, type)) read_rope(theirs, *own, section, ours);
          return;
        }
        if (type == full_type)
          read_flat_rope(theirs, section, ours);
        else
          copy(theirs, "rope_local_base_freq", ours, section + ".rope_theta");
      };
      if (rope && !given(*rope, full_type) && !given(*rope, sliding_type))
        bad_input("rope_parameters has neither {} nor {}", full_type, sliding_type);
      read(full, full_type, "1000000");
      read(sliding, sliding_type, "10000");
      check_whole_heads(ours);
    },
    [](const Config& ours, Json& theirs) {
      const std::vector<BlockSpec> blocks = block_specs(ours);
      const bool scaled_windows = std::any_of(blocks.begin(), blocks.end(), [](const BlockSpec& b) {
        return b.attention.window > 0 && b.attention.rope && b.attention.rope->scaling != RopeScaling::none;
      });
      const bool older = !given(theirs, "rope_parameters") && !scaled_windows;
      Json by_type = Json::object();
      for (const bool windowed : {false, true}) {
        const auto block = std::find_if(blocks.begin(), blocks.end(), [&](const BlockSpec& b) {
          return b.attention.rope && (b.attention.window > 0) == windowed;
        });
        if (block == blocks.end()) continue;
        const std::string kind = ours.model.pattern.kind_of(block - blocks.begin());
        const std::string section = kind.empty() ? "model" : "attention." + kind;
        const RopeSpec& spec = *block->attention.rope;
        const Index width = block->attention.key_width;
        if (!older) {
          Json rope = Json::object();
          write_rope(ours, section, spec, width, rope);
          by_type[windowed ? sliding_type : full_type] = rope;
        } else if (windowed) {
          put(theirs, "rope_local_base_freq", spec.theta);
        } else {
          write_flat_rope(ours, section, spec, width, theirs);
        }
      }
      if (!older) theirs["rope_parameters"] = by_type;
    }};

// ---- windows ----

namespace {

// Types of all layers: layer_types, or the rule `windowed` if the key is absent.
std::vector<std::string> layer_types(const Json& theirs, const std::function<bool(Index)>& windowed) {
  constexpr Index most = 10000;  // maximum of model.layers
  const Index layers = theirs.at("num_hidden_layers").get<std::int64_t>();
  if (layers < 1 || layers > most) bad_input("num_hidden_layers = {}: expected 1 to {}", layers, most);
  std::vector<std::string> out;
  if (const Json* types = given(theirs, "layer_types")) {
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
Index window_of(const Json& theirs, Index absent) {
  return theirs.contains("sliding_window") ? count(theirs, "sliding_window", 0) : absent;
}

void read_windows(const Json& theirs, const std::vector<std::string>& types, Index absent, KeySettings& ours) {
  for (const std::string& type : types)
    if (type != full_type && type != sliding_type) bad_input("layer_types: {} is not known", type);
  const auto windowed = std::count(types.begin(), types.end(), sliding_type);
  if (windowed == 0) return;
  const Index size = window_of(theirs, absent);
  if (size < 1) bad_input("sliding_window = {}: expected 1 or more, as some layers have a window", size);
  const std::string window = fmt::format("{}", size);
  if (windowed == std::ssize(types)) return ours.emplace_back("model.window", window), void();
  ours.emplace_back("model.pattern", pattern_of(types));
  ours.emplace_back("attention.local.window", window);
}

// Writes layer_types and sliding_window. Returns true if a layer has a window.
bool write_windows(const Config& ours, Json& theirs) {
  Json types = Json::array();
  Json window;
  for (const BlockSpec& block : block_specs(ours)) {
    types.push_back(std::string(block.attention.window > 0 ? sliding_type : full_type));
    if (block.attention.window > 0) window = block.attention.window;
  }
  theirs["layer_types"] = types;
  if (!window.is_null()) theirs["sliding_window"] = window;
  return !window.is_null();
}
void write_types(const Config& ours, Json& theirs) {
  write_windows(ours, theirs);
}

// Every n-th layer is full, the others have a window. named: sliding_window_pattern overrides
// `every`. absent: default window.
template <Index every, bool named, Index absent>
void read_full_every(const Json& theirs, KeySettings& ours) {
  const Index n = named ? count(theirs, "sliding_window_pattern", every) : every;
  if (n < 1) bad_input("sliding_window_pattern = {}: expected 1 or more", n);
  read_windows(theirs, layer_types(theirs, [n](Index i) { return (i + 1) % n != 0; }), absent, ours);
}

template <Index absent>
void read_one_window(const Json& theirs, KeySettings& ours) {
  const bool has = window_of(theirs, absent) > 0;
  read_windows(theirs, layer_types(theirs, [has](Index) { return has; }), absent, ours);
}
void write_one_window(const Config& ours, Json& theirs) {
  const bool listed = given(theirs, "layer_types");
  if (!write_windows(ours, theirs)) theirs["sliding_window"] = Json();
  if (!listed) theirs = without(theirs, "layer_types");
}

constexpr Index qwen_window = 4096;  // default of sliding_window
template <bool (*windowed)(Index layer, Index max_window_layers)>
void read_used_windows(const Json& theirs, KeySettings& ours) {
  const Index bound = count(theirs, "max_window_layers", 28);
  if (!flag(theirs, "use_sliding_window", false) || window_of(theirs, qwen_window) == 0) return;
  read_windows(theirs, layer_types(theirs, [&](Index layer) { return windowed(layer, bound); }), qwen_window, ours);
}
void write_used_windows(const Config& ours, Json& theirs) {
  theirs["use_sliding_window"] = write_windows(ours, theirs);
}
bool from_bound(Index layer, Index bound) {
  return layer >= bound;
}
bool even_below_bound(Index layer, Index bound) {
  return layer % 2 == 0 && layer < bound;
}

}  // namespace

const ConfigPart window_part{read_one_window<0>, write_one_window};
const ConfigPart mistral_window_part{read_one_window<4096>, write_one_window};
const ConfigPart gemma2_window_part{read_full_every<2, false, 4096>, write_types};
const ConfigPart gpt_oss_window_part{read_full_every<2, false, 128>, write_types};
const ConfigPart gemma3_window_part{read_full_every<6, true, 4096>, write_types};
const ConfigPart cohere2_window_part{[](const Json& theirs, KeySettings& ours) {
                                       read_full_every<4, true, 4096>(theirs, ours);
                                       const auto [full, sliding] = layer_sections(ours);
                                       if (full.empty()) return;
                                       const std::string section = sliding.empty() ? "model" : "attention.global";
                                       ours.emplace_back(section + ".position", "none");
                                     },
                                     write_types};
const ConfigPart qwen_window_part{read_used_windows<from_bound>, write_used_windows};
const ConfigPart qwen2_moe_window_part{read_used_windows<even_below_bound>, write_used_windows};
const ConfigPart qwen3_moe_window_part{[](const Json& theirs, KeySettings& ours) {
                                         if (flag(theirs, "use_sliding_window", false))
                                           ours.emplace_back("model.window",
                                                             fmt::format("{}", window_of(theirs, qwen_window)));
                                       },
                                       [](const Config& ours, Json& theirs) {
                                         const Index window = block_specs(ours).front().attention.window;
                                         theirs["use_sliding_window"] = window > 0;
                                         if (window > 0) theirs["sliding_window"] = window;
                                       }};

// ---- single families ----

const ConfigPart attention_scale_part{
    [](const Json& theirs, KeySettings& ours) {
      const double scalar = theirs.at("query_pre_attn_scalar").get<double>();
      if (!(scalar > 0)) bad_input("query_pre_attn_scalar = {}: expected more than 0", scalar);
      ours.emplace_back("model.attention_scale", fmt::format("{}", 1 / std::sqrt(scalar)));
    },
    [](const Config& ours, Json& theirs) {
      const double scale = ours.model.attention_scale > 0 ? ours.model.attention_scale
                                                          : 1 / std::sqrt(static_cast<double>(ours.model.head_dim));
      double scalar = 1 / (scale * scale);
      if (std::abs(scalar - std::round(scalar)) < 1e-9 * scalar) scalar = std::round(scalar);
      put(theirs, "query_pre_attn_scalar",
          scalar == std::round(scalar) ? Json(static_cast<Index>(scalar)) : Json(scalar));
    }};

namespace {

// Attention scale of a config.json with mscale_all_dim. 0 if the key is absent or 0.
double latent_scale(const Json& theirs) {
  const Json* rope = given(theirs, "rope_parameters");
  if (!rope) rope = given(theirs, "rope_scaling");
  const Json* all = rope ? given(*rope, "mscale_all_dim") : nullptr;
  if (!all || all->get<double>() == 0) return 0;
  const Index width = count(theirs, "qk_nope_head_dim", 0) + count(theirs, "qk_rope_head_dim", 0);
  const double factor = yarn_scale(rope->at("factor").get<double>(), all->get<double>());
  return factor * factor / std::sqrt(static_cast<double>(width));
}

// Inverse of yarn_scale with respect to m, rounded to 12 digits. A rounded scale of a configuration
// then gives 1 and not 1.0000000000000002.
double yarn_mscale(double factor, double scale) {
  return Json::parse(fmt::format("{:.12g}", (scale - 1) / (0.1 * std::log(factor)))).get<double>();
}

}  // namespace

// mscale_all_dim multiplies the scores by its squared yarn_scale, and divides cos and sin by that
// scale.
const ConfigPart latent_scale_part{
    [](const Json& theirs, KeySettings& ours) {
      if (const double scale = latent_scale(theirs); scale != 0)
        ours.emplace_back("model.attention_scale", fmt::format("{}", scale));
    },
    [](const Config& ours, Json& theirs) {
      const std::optional<RopeSpec> spec = rope_of(ours);
      const double scale = ours.model.attention_scale;
      if (!spec || spec->scaling != RopeScaling::yarn || spec->factor <= 1 || scale == 0) return;
      // The imported keys already express this scale.
      if (std::abs(latent_scale(theirs) - scale) <= 1e-12 * scale) return;
      Json& rope = theirs[given(theirs, "rope_parameters") ? "rope_parameters" : "rope_scaling"];
      const double all = std::sqrt(scale * std::sqrt(static_cast<double>(ours.model.key_width())));
      rope["mscale_all_dim"] = yarn_mscale(spec->factor, all);
      const double m = yarn_mscale(spec->factor, spec->attention_factor * all);
      // Without mscale, the default or attention_factor applies.
      if (ours.model.rope_attention_factor == 0 || m == 0) return;
      rope["mscale"] = m;
      rope = without(rope, "attention_factor");
    }};

const ConfigPart greedy_part{[](const Json& theirs, KeySettings& ours) {
                               const Json* method = given(theirs, "topk_method");
                               if (method && *method != Json("greedy")) return;
                               ours.emplace_back("moe.groups", "1");
                               ours.emplace_back("moe.group_limit", "1");
                             },
                             [](const Config& ours, Json& theirs) {
                               theirs["topk_method"] = ours.moe.groups > 1 ? "group_limited_greedy" : "greedy";
                             }};

// If output_router_logits is true, transformers adds router_aux_loss_coef * E * sum_i f_i P_i to
// the loss, over all layers jointly. Our loss has the factor E / top_k (balance.h).
const ConfigPart router_loss_part{[](const Json& theirs, KeySettings& ours) {
                                    const Json* factor = given(theirs, "router_aux_loss_coef");
                                    if (!flag(theirs, "output_router_logits", false)) return;
                                    if (!factor)
                                      bad_input("it has no router_aux_loss_coef, which output_router_logits needs");
                                    const auto top_k =
                                        static_cast<double>(theirs.at("num_experts_per_tok").get<std::int64_t>());
                                    ours.emplace_back("moe.aux_loss", fmt::format("{}", factor->get<double>() * top_k));
                                    ours.emplace_back("moe.aux_layers", "joint");
                                    ours.emplace_back("moe.aux_scope", "global_batch");
                                  },
                                  [](const Config& ours, Json& theirs) {
                                    const auto top_k = static_cast<double>(ours.moe.top_k);
                                    const Json* before = given(theirs, "router_aux_loss_coef");
                                    const bool joint = ours.moe.aux_layers == AuxLayers::joint && ours.moe.aux_loss > 0;
                                    const bool same = before && before->get<double>() * top_k == ours.moe.aux_loss;
                                    if (joint && !same) theirs["router_aux_loss_coef"] = ours.moe.aux_loss / top_k;
                                    if (joint || (before && given(theirs, "output_router_logits")))
                                      theirs["output_router_logits"] = joint;
                                  }};

const ConfigPart rotary_dim_part{
    [](const Json& theirs, KeySettings& ours) {
      const Index head = theirs.at("n_embd").get<std::int64_t>() / theirs.at("n_head").get<std::int64_t>();
      const Index rotated =
          theirs.contains("rotary_dim") ? count(theirs, "rotary_dim", head) : std::min<Index>(64, head);
      // The 1e-6 ensures that fraction * width does not round to just below `rotated`.
      ours.emplace_back(
          "model.rope_fraction",
          rotated >= head ? "1" : fmt::format("{}", (static_cast<double>(rotated) + 1e-6) / static_cast<double>(head)));
    },
    [](const Config& ours, Json& theirs) {
      if (const auto spec = rope_of(ours)) theirs["rotary_dim"] = spec->rotated;
    }};

const ConfigPart gpt2_width_part{
    [](const Json& theirs, KeySettings& ours) {
      ours.emplace_back("model.d_ff",
                        fmt::format("{}", count(theirs, "n_inner", 4 * theirs.at("n_embd").get<std::int64_t>())));
    },
    [](const Config& ours, Json& theirs) {
      const bool usual = ours.model.d_ff == 4 * ours.model.d_model;
      theirs["n_inner"] = usual && !given(theirs, "n_inner") ? Json() : Json(ours.model.d_ff);
    }};

// The default pad_token_id of transformers is 32000, which fails for a smaller vocabulary.
const ConfigPart phi3_pad_part{[](const Json&, KeySettings&) {},
                               [](const Config& ours, Json& theirs) {
                                 if (ours.model.vocab <= 32000 && !theirs.contains("pad_token_id"))
                                   theirs["pad_token_id"] = Json();
                               }};

const ConfigPart bias_part{
    [](const Json& theirs, KeySettings& ours) {
      const bool attention = flag(theirs, "attention_bias", false), mlp = flag(theirs, "mlp_bias", false);
      ours.emplace_back("model.bias", attention ? mlp ? "all" : "attention" : mlp ? "mlp" : "none");
    },
    [](const Config& ours, Json& theirs) {
      const Biases bias = ours.model.bias;
      theirs["attention_bias"] = bias == Biases::all || bias == Biases::attention;
      theirs["mlp_bias"] = bias == Biases::all || bias == Biases::mlp;
    }};

const ConfigPart opt_width_part{
    [](const Json& theirs, KeySettings&) {
      const std::int64_t width = theirs.at("hidden_size").get<std::int64_t>();
      if (const Index own = count(theirs, "word_embed_proj_dim", width); own != width)
        bad_input("word_embed_proj_dim = {}: only hidden_size = {} can be read, which needs no projections", own,
                  width);
    },
    [](const Config& ours, Json& theirs) { theirs["word_embed_proj_dim"] = ours.model.d_model; }};

const ConfigPart falcon_part{
    [](const Json& theirs, KeySettings& ours) {
      const bool fresh = flag(theirs, "new_decoder_architecture", false);
      const Index heads = theirs.at("num_attention_heads").get<std::int64_t>();
      const Index kv = fresh ? count(theirs, "num_kv_heads", heads) : flag(theirs, "multi_query", true) ? 1 : heads;
      // Falcon's code adds the ALiBi biases before it divides the scores by sqrt(head_dim).
      const double head = theirs.at("hidden_size").get<double>() / static_cast<double>(heads);
      if (flag(theirs, "alibi", false)) ours.emplace_back("model.alibi_scale", fmt::format("{}", 1 / std::sqrt(head)));
      ours.emplace_back("model.parallel_block", fresh || flag(theirs, "parallel_attn", true) ? "true" : "false");
      ours.emplace_back("model.kv_heads", fmt::format("{}", kv));
      ours.emplace_back("model.parallel_norms", fresh && count(theirs, "num_ln_in_parallel_attn", 2) == 2 ? "2" : "1");
      ours.emplace_back("model.d_ff", fmt::format("{}", count(theirs, "ffn_hidden_size",
                                                              4 * theirs.at("hidden_size").get<std::int64_t>())));
    },
    [](const Config& ours, Json& theirs) {
      const bool two = ours.model.parallel_norms == 2, serial = !ours.model.parallel_block;
      const bool grouped = ours.model.kv_heads != 1 && ours.model.kv_heads != ours.model.heads;
      const bool fresh = !serial && (two || grouped || flag(theirs, "new_decoder_architecture", false));
      theirs["new_decoder_architecture"] = fresh;
      theirs["parallel_attn"] = !serial;
      if (fresh) {  // the two kinds of files have different keys for kv heads
        put(theirs, "num_kv_heads", ours.model.kv_heads);
        theirs["num_ln_in_parallel_attn"] = two ? 2 : 1;
      } else {
        theirs["multi_query"] = ours.model.kv_heads == 1;
      }
      theirs["ffn_hidden_size"] = ours.model.d_ff;
    }};

const ConfigPart sparse_step_part{
    [](const Json& theirs, KeySettings& ours) {
      const Index step = count(theirs, "decoder_sparse_step", 1);
      Index dense = step - 1;  // layers i with (i + 1) % step == 0 are sparse
      std::vector<std::int64_t> only;
      if (const Json* list = given(theirs, "mlp_only_layers")) only = list->get<std::vector<std::int64_t>>();
      std::sort(only.begin(), only.end());
      only.erase(std::unique(only.begin(), only.end()), only.end());
      std::vector<std::string> others;
      const Index layers = count(theirs, "num_hidden_layers", 0);
      for (const std::int64_t layer : only)
        if (step == 1 && layer == dense)
          ++dense;
        else if (layer >= 0 && layer < layers && (layer + 1) % std::max<Index>(step, 1) == 0)
          others.push_back(fmt::format("{}", layer));
      ours.emplace_back("moe.every", fmt::format("{}", step));
      ours.emplace_back("moe.first_dense", fmt::format("{}", dense));
      if (!others.empty()) ours.emplace_back("moe.dense_layers", join(others, ", "));
    },
    [](const Config& ours, Json& theirs) {
      theirs["decoder_sparse_step"] = ours.moe.every;
      Json only = Json::array();
      for (Index layer = 0; layer < ours.model.layers; ++layer)
        if (!ours.is_moe(layer) && (layer + 1) % ours.moe.every == 0) only.push_back(layer);
      theirs["mlp_only_layers"] = only;
    }};

}  // namespace sy
