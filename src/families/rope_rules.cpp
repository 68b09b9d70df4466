// Conversions of rotary positions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include "src/families/config_rules.h"
#include "src/families/rule_helpers.h"
#include "src/params/block_specs.h"
#include "src/text/strings.h"

namespace sy {
namespace {

std::string list_text(const Json& numbers) {
  std::vector<std::string> items;
  for (const Json& n : numbers) items.push_back(setting_text(n));
  return join(items, ", ");
}

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

constexpr std::string_view original = "original_max_position_embeddings", factor = "factor", theta_key = "rope_theta",
                           fraction_key = "partial_rotary_factor";

// Returns the rope_parameters that count, nullptr if there are none: those of a rope_scaling do.
const Json* rope_parameters_of(const Json& hf_config) {
  const Json* const scaling = find_value(hf_config, "rope_scaling");
  return scaling && *scaling != Json::object() ? nullptr : find_value(hf_config, "rope_parameters");
}

// Returns the nested rotary keys that count, of either name; nullptr if there are none.
const Json* rotary_keys_of(const Json& hf_config) {
  const Json* const rope = rope_parameters_of(hf_config);
  return rope ? rope : find_value(hf_config, "rope_scaling");
}

// Throws InputError if versions of transformers would read another original length.
void check_original_length(const Json& hf_config, const Json& rope) {
  const Json *at_top = find_value(hf_config, original), *own = find_value(rope, original);
  if (at_top && own && at_top->get<double>() != own->get<double>())
    bad_input("{} is {}, and {} in the scaling: remove the wrong one", original, at_top->dump(), own->dump());
}

// Reads the rotary parameters of one kind of layer. section: "model" or "attention.local".
void read_rope(const Json& hf_config, const Json& rope, const std::string& section, KeySettings& settings) {
  copy_setting(rope, "rope_theta", settings, section + ".rope_theta");
  copy_setting(rope, "partial_rotary_factor", settings, section + ".rope_fraction");
  const RopeScaling scaling = scaling_type(rope);
  if (scaling == RopeScaling::none) return;
  const std::string name = rope_type(rope)->get<std::string>();
  settings.emplace_back(section + ".rope_scaling", name == "su" ? "longrope" : name);
  Json complete = rope;
  const Json& positions = hf_config.at("max_position_embeddings");
  if (scaling == RopeScaling::dynamic)  // it does not read the original length
    complete[original] = positions;
  else
    check_original_length(hf_config, rope);
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
  copy_setting(hf_config, "rope_theta", settings, section + ".rope_theta");
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

// Attention scale of a config.json with mscale_all_dim. 0 if the key is absent or 0.
double latent_scale(const Json& hf_config) {
  const Json* rope = rotary_keys_of(hf_config);
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

// Rotary positions of full and of sliding layers. The flat keys are rope_theta and rope_scaling for
// full layers, and `sliding_theta` for sliding ones, which have no scaling.
struct LayerTypeTheta {
  const char *full_default, *sliding_default;
  std::string_view sliding_theta;
};
constexpr LayerTypeTheta gemma3_theta{"1000000", "10000", "rope_local_base_freq"},
    olmo3_theta{"500000", "500000", theta_key};

template <const LayerTypeTheta& theta>
void read_rope_by_layer_type(const Json& hf_config, KeySettings& settings) {
  const auto [full, sliding] = layer_sections(settings);
  const Json* rope = find_value(hf_config, "rope_parameters");
  if (rope && find_value(hf_config, "rope_scaling"))
    bad_input("it has rope_parameters and rope_scaling: remove the wrong one");
  const auto read = [&](const std::string& section, const char* type, const char* default_theta) {
    if (section.empty()) return;
    settings.emplace_back(section + ".rope_theta", default_theta);
    settings.emplace_back(section + ".rope_scaling", "none");
    const bool is_full = type == full_type;
    if (is_full && !rope) return read_flat_rope(hf_config, section, settings);
    copy_setting(hf_config, is_full ? theta_key : theta.sliding_theta, settings, section + ".rope_theta");
    if (const Json* own = rope ? find_value(*rope, type) : nullptr) read_rope(hf_config, *own, section, settings);
  };
  if (rope && !find_value(*rope, full_type) && !find_value(*rope, sliding_type))
    bad_input("rope_parameters has neither {} nor {}", full_type, sliding_type);
  read(full, full_type, theta.full_default);
  read(sliding, sliding_type, theta.sliding_default);
  check_whole_heads(settings);
}

// Writes rope_parameters only if the flat keys cannot express the model.
template <const LayerTypeTheta& theta>
void write_rope_by_layer_type(const Config& config, Json& hf_config) {
  const std::vector<BlockSpec> blocks = block_specs(config);
  const bool one_theta = theta.sliding_theta == theta_key;
  const auto fits = [&](const BlockSpec& b) {
    const auto& rope = b.attention().rope;
    if (!rope) return true;
    if (b.attention().window > 0 && rope->scaling != RopeScaling::none) return false;
    return !one_theta || fmt::format("{}", rope->theta) == theta.full_default;
  };
  const bool flat = !find_value(hf_config, "rope_parameters") && std::all_of(blocks.begin(), blocks.end(), fits);
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
      put(hf_config, theta.sliding_theta, spec.theta);
    } else {
      write_flat_rope(config, section, spec, width, hf_config);
    }
  }
  if (!flat) hf_config["rope_parameters"] = by_type;
}

// If both keys are absent, models have the scaling of the published ones. transformers 5 reads a
// null in the same way, and 4 reads a rope_scaling of null as none. Therefore no scaling is written
// as type "default".
struct PublishedRope {
  const char *theta, *scaling;  // the scaling as JSON
  bool own_theta;               // true: if both are absent, transformers 5 ignores rope_theta
};
constexpr PublishedRope gpt_oss_rope{
    "150000", R"({"rope_type": "yarn", "factor": 32.0, "truncate": false, "original_max_position_embeddings": 4096})",
    false},
    apertus_rope{"12000000",
                 R"({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192,
                     "low_freq_factor": 1.0, "high_freq_factor": 4.0})",
                 true};

template <const PublishedRope& published>
void read_published_rope(const Json& hf_config, KeySettings& settings) {
  settings.emplace_back("model.rope_theta", published.theta);
  if (find_value(hf_config, "rope_parameters") || find_value(hf_config, "rope_scaling"))
    return rope_rule.read(hf_config, settings);
  if (hf_config.contains("rope_scaling"))
    bad_input(
        "rope_scaling = null: transformers 4 has no scaling then, and 5 has that of the published model: "
        "remove the key for the latter, or set its rope_type to \"default\"");
  const Json* const theta = find_value(hf_config, theta_key);
  if (published.own_theta && theta && theta->get<double>() != Json::parse(published.theta).get<double>())
    bad_input(
        "rope_theta = {} without rope_parameters and rope_scaling: transformers 5 takes {}: write it into rope_parameters",
        theta->dump(), published.theta);
  read_rope(hf_config, Json::parse(published.scaling), "model", settings);
  rope_rule.read(hf_config, settings);
}
void write_published_rope(const Config& config, Json& hf_config) {
  rope_rule.write(config, hf_config);
  if (!find_value(hf_config, "rope_parameters") && !find_value(hf_config, "rope_scaling")) {
    hf_config["rope_scaling"] = Json::object();
    hf_config["rope_scaling"]["rope_type"] = "default";
  }
}

}  // namespace

// Writes rope_parameters only if the imported file has it: transformers 4 does not read it, and
// transformers 5 also reads the flat keys.
const ConfigRule partial_rope_rule{
    [](const Json& hf_config, KeySettings& settings) {
      // The nested keys count for more.
      copy_setting(hf_config, theta_key, settings, "model.rope_theta");
      copy_setting(hf_config, fraction_key, settings, "model.rope_fraction");
      if (const Json* rope = rope_parameters_of(hf_config))
        read_rope(hf_config, *rope, "model", settings);
      else
        read_flat_rope(hf_config, "model", settings);
    },
    [](const Config& config, Json& hf_config) {
      const std::optional<RopeSpec> spec = rope_of(config);
      if (!spec) return;
      const Index width = config.model.kv_lora_rank > 0 ? config.model.qk_rope_head_dim : config.model.head_dim;
      // For longrope, transformers 4 reads the key only at the top
      // level.
      if (spec->scaling == RopeScaling::longrope) put(hf_config, original, spec->original_length);
      const Json* rope_parameters = rope_parameters_of(hf_config);
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
      const Json* rope = rotary_keys_of(hf_config);
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

const ConfigRule gpt_oss_rope_rule{read_published_rope<gpt_oss_rope>, write_published_rope};
const ConfigRule apertus_rope_rule{read_published_rope<apertus_rope>, write_published_rope};

// Hunyuan's files name a scaling "dynamic" that does not depend on the length, with a factor alpha.
const ConfigRule hunyuan_rope_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Json* rope = rotary_keys_of(hf_config);
      const Json* alpha = rope ? find_value(*rope, "alpha") : nullptr;
      if (!alpha || alpha->get<double>() == 0 || scaling_type(*rope) != RopeScaling::dynamic)
        return rope_rule.read(hf_config, settings);
      copy_setting(hf_config, theta_key, settings, "model.rope_theta");
      copy_setting(*rope, theta_key, settings, "model.rope_theta");
      settings.emplace_back("model.rope_scaling", "ntk");
      settings.emplace_back("model.rope_factor", setting_text(*alpha));
    },
    [](const Config& config, Json& hf_config) {
      const std::optional<RopeSpec> spec = rope_of(config);
      if (!spec || spec->scaling != RopeScaling::ntk) return rope_rule.write(config, hf_config);
      const bool nested = rope_parameters_of(hf_config);
      const char* const name = nested ? "rope_parameters" : "rope_scaling";
      Json rope =
          find_value(hf_config, name) ? *find_value(hf_config, name) : Json{{"type", "dynamic"}, {"factor", 1.0}};
      if (scaling_type(rope) != RopeScaling::dynamic) rope["rope_type"] = "dynamic";
      put(rope, "alpha", spec->factor);
      put(nested ? rope : hf_config, theta_key, spec->theta);
      hf_config[name] = rope;
    }};

const ConfigRule gemma3_rope_rule{read_rope_by_layer_type<gemma3_theta>, write_rope_by_layer_type<gemma3_theta>};

// transformers 5 takes 500000 for the sliding layers, whatever the flat rope_theta is.
const ConfigRule olmo3_rope_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Json *nested = find_value(hf_config, "rope_parameters"), *theta = find_value(hf_config, theta_key);
      if (!nested && !theta)
        bad_input("it has no rope_theta: transformers 4 takes 10000 for it, and 5 takes 500000: add it");
      if (!nested && theta->get<double>() != Json::parse(olmo3_theta.sliding_default).get<double>())
        bad_input(
            "rope_theta = {} without rope_parameters: transformers 5 takes {} for layers with a window: write "
            "rope_parameters",
            theta->dump(), olmo3_theta.sliding_default);
      if (nested && theta)
        for (const char* const type : {full_type, sliding_type})
          if (const Json* own = find_value(*nested, type); own && !find_value(*own, theta_key))
            bad_input("rope_parameters.{} has no rope_theta: add it", type);
      read_rope_by_layer_type<olmo3_theta>(hf_config, settings);
    },
    write_rope_by_layer_type<olmo3_theta>};

// rotary_dim is the number of rotated elements of a head. partial_rotary_factor replaces it.
const ConfigRule minimax_m2_rope_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Json* rotated = find_value(hf_config, "rotary_dim");
      if (rotated && !find_value(hf_config, fraction_key))
        add_setting(settings, "model.rope_fraction", rotated->get<double>() / hf_config.at("head_dim").get<double>());
      partial_rope_rule.read(hf_config, settings);
    },
    [](const Config& config, Json& hf_config) {
      const bool by_width = find_value(hf_config, "rotary_dim") && !find_value(hf_config, fraction_key) &&
                            !find_value(hf_config, "rope_parameters");
      partial_rope_rule.write(config, hf_config);
      if (by_width) hf_config = without(hf_config, fraction_key);
      const std::optional<RopeSpec> spec = rope_of(config);
      if (spec && find_value(hf_config, "rotary_dim")) put(hf_config, "rotary_dim", spec->rotated);
    }};

const ConfigRule modernbert_rope_rule{
    [](const Json& hf_config, KeySettings& settings) {
      Json with_theta = hf_config, by_type = Json::object();
      const Json* const rope_parameters = find_value(hf_config, "rope_parameters");
      if (const Json* const scaling = find_value(hf_config, "rope_scaling"))
        bad_input("rope_scaling = {}: only null can be read", scaling->dump());
      for (const auto& [type, name, theta] : {std::tuple{full_type, "global_rope_theta", 160000.0},
                                              std::tuple{sliding_type, "local_rope_theta", 10000.0}}) {
        const Json* const own = rope_parameters ? find_value(*rope_parameters, type) : nullptr;
        const Json* const flat = find_value(hf_config, name);
        Json rope = own ? *own : Json{{"rope_type", "default"}};
        if (!find_value(rope, "rope_theta")) rope["rope_theta"] = flat ? *flat : Json(theta);
        by_type[type] = rope;
      }
      with_theta["rope_parameters"] = by_type;
      gemma3_rope_rule.read(with_theta, settings);
    },
    [](const Config& config, Json& hf_config) {
      Json with_theta = hf_config;
      with_theta["rope_parameters"] = Json::object();
      gemma3_rope_rule.write(config, with_theta);
      const Json& by_type = with_theta.at("rope_parameters");
      // transformers 4 reads the flat keys alone, which have no scaling.
      bool flat = !find_value(hf_config, "rope_parameters");
      for (const Json::Member& type : by_type.members()) flat &= type.value.at("rope_type") == Json("default");
      if (!flat) hf_config["rope_parameters"] = by_type;
      for (const auto& [type, name] :
           {std::pair{full_type, "global_rope_theta"}, std::pair{sliding_type, "local_rope_theta"}})
        if (const Json* const own = find_value(by_type, type); own && flat) put(hf_config, name, own->at("rope_theta"));
    }};

// mscale_all_dim multiplies the scores by its squared yarn_scale, and divides cos and sin by that
// scale.
const ConfigRule latent_attention_scale_rule{
    [](const Json& hf_config, KeySettings& settings) {
      if (const double scale = latent_scale(hf_config); scale != 0)
        add_setting(settings, "model.attention_scale", scale);
    },
    [](const Config& config, Json& hf_config) {
      const std::optional<RopeSpec> spec = rope_of(config);
      const double scale = config.model.attention_scale;
      if (!spec || spec->scaling != RopeScaling::yarn || spec->factor <= 1 || scale == 0) return;
      // The imported keys already express this scale.
      if (std::abs(latent_scale(hf_config) - scale) <= 1e-12 * scale) return;
      Json& rope = hf_config[rope_parameters_of(hf_config) ? "rope_parameters" : "rope_scaling"];
      const double all = std::sqrt(scale * std::sqrt(static_cast<double>(config.model.key_width())));
      rope["mscale_all_dim"] = yarn_mscale(spec->factor, all);
      const double m = yarn_mscale(spec->factor, spec->attention_factor * all);
      // Without mscale, the default or attention_factor applies.
      if (config.model.rope_attention_factor == 0 || m == 0) return;
      rope["mscale"] = m;
      rope = without(rope, "attention_factor");
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

}  // namespace sy
