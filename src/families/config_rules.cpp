// Conversions of single families. The files rope_rules.cpp and window_rules.cpp convert rotary
// positions and windows.
#include "src/families/config_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "src/families/rule_helpers.h"
#include "src/text/strings.h"

namespace sy {
namespace {

constexpr std::string_view first_moe_layer = "moe_layer_start_index", last_moe_layer = "moe_layer_end_index";

constexpr std::pair<std::string_view, std::string_view> hunyuan_expert_keys[] = {{"num_experts", "moe.experts"},
                                                                                 {"moe_topk", "moe.top_k"}};

// Returns four times an integer of the file. A product beyond the range of numbers becomes its end,
// which the key then refuses.
std::int64_t four_times(const Json& hf_config, const char* key) {
  using Limits = std::numeric_limits<std::int64_t>;
  return 4 * std::clamp(hf_config.at(key).get<std::int64_t>(), Limits::min() / 4, Limits::max() / 4);
}

// The values of model.bias, as flags of the products with biases.
struct BiasFlags {
  std::string_view value;
  bool qkv, out, mlp;
};
constexpr BiasFlags bias_flags[] = {{"none", false, false, false},
                                    {"qkv", true, false, false},
                                    {"attention", true, true, false},
                                    {"all", true, true, true},
                                    {"mlp", false, false, true}};
// Names of the keys of these flags. Two flags may have one key. Empty: the family has no such bias.
struct BiasKeys {
  std::string_view qkv, out, mlp;
  bool qkv_default;
};
constexpr BiasKeys llama_bias_keys{"attention_bias", "attention_bias", "mlp_bias", false},
    seed_oss_bias_keys{"attention_bias", "attention_out_bias", "mlp_bias", true},
    helium_bias_keys{"attention_bias", "", "mlp_bias", false};

template <const BiasKeys& keys>
const ConfigRule rule_of_biases{
    [](const Json& hf_config, KeySettings& settings) {
      const bool qkv = bool_or(hf_config, keys.qkv, keys.qkv_default);
      const bool out = keys.out == keys.qkv ? qkv : bool_or(hf_config, keys.out, false);
      const bool mlp = bool_or(hf_config, keys.mlp, false);
      for (const BiasFlags& row : bias_flags)
        if (row.qkv == qkv && row.out == out && row.mlp == mlp) {
          settings.emplace_back("model.bias", row.value);
          return;
        }
      bad_input("{} = {}{} with {} = {}: these biases cannot be combined here", keys.qkv, qkv,
                keys.out.empty() || keys.out == keys.qkv ? "" : fmt::format(" and {} = {}", keys.out, out), keys.mlp,
                mlp);
    },
    [](const Config& config, Json& hf_config) {
      const std::string value = value_of(config, "model.bias");
      for (const BiasFlags& row : bias_flags) {
        if (row.value != value) continue;
        if (!keys.out.empty()) hf_config[keys.out] = row.out;
        hf_config[keys.qkv] = row.qkv;
        hf_config[keys.mlp] = row.mlp;
      }
    }};

// id: the default pad_token_id of transformers, which fails for a smaller vocabulary.
template <Index id>
const ConfigRule rule_of_pad_token{[](const Json&, KeySettings&) {},
                                   [](const Config& config, Json& hf_config) {
                                     if (config.model.vocab <= id && !hf_config.contains("pad_token_id"))
                                       hf_config["pad_token_id"] = Json();
                                   }};

}  // namespace

const ConfigRule attention_scale_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const double scalar = hf_config.at("query_pre_attn_scalar").get<double>();
      if (!(scalar > 0)) bad_input("query_pre_attn_scalar = {}: expected more than 0", scalar);
      add_setting(settings, "model.attention_scale", 1 / std::sqrt(scalar));
    },
    [](const Config& config, Json& hf_config) {
      const double scale = config.model.attention_scale > 0 ? config.model.attention_scale
                                                            : 1 / std::sqrt(static_cast<double>(config.model.head_dim));
      double scalar = 1 / (scale * scale);
      if (std::abs(scalar - std::round(scalar)) < 1e-9 * scalar) scalar = std::round(scalar);
      put(hf_config, "query_pre_attn_scalar",
          scalar == std::round(scalar) ? Json(static_cast<Index>(scalar)) : Json(scalar));
    }};

// Granite has factors of the scores, without a default that depends on the width of a head, and
// divisors of the logits.
const ConfigRule granite_scales_rule{
    [](const Json& hf_config, KeySettings& settings) {
      for (const auto& [hf_name, key, inverse] : {std::tuple{"attention_multiplier", "model.attention_scale", false},
                                                  std::tuple{"logits_scaling", "model.logit_scale", true}}) {
        const double value = value_or(hf_config, hf_name, 1.0);
        if (!(value > 0)) bad_input("{} = {}: expected more than 0", hf_name, value);
        add_setting(settings, key, inverse ? 1 / value : value);
      }
    },
    [](const Config& config, Json& hf_config) {
      const Config::Model& m = config.model;
      put(hf_config, "attention_multiplier",
          m.attention_scale > 0 ? m.attention_scale : 1 / std::sqrt(static_cast<double>(m.key_width())));
      // An imported divisor comes back without rounding.
      const Json* before = find_value(hf_config, "logits_scaling");
      const double divisor = 1 / m.logit_scale;
      if (!before || std::abs(before->get<double>() - divisor) > 1e-12 * divisor) hf_config["logits_scaling"] = divisor;
    }};

// transformers does not save multi-token prediction, but keeps the key. An export without modules
// therefore leaves the key as it was imported.
const ConfigRule mtp_rule{[](const Json& hf_config, KeySettings& settings) {
                            copy_setting(hf_config, "num_nextn_predict_layers", settings, "model.mtp_depth");
                          },
                          [](const Config& config, Json& hf_config) {
                            const Index depth = config.model.mtp_depth;
                            if (depth > 0 || !find_value(hf_config, "num_nextn_predict_layers"))
                              put(hf_config, "num_nextn_predict_layers", depth);
                          }};

// Files name the type of each layer. Layers with dense FFNs come first. Without mlp_layer_types,
// first_k_dense_replace is their number.
const ConfigRule deepseek_layers_rule{
    [](const Json& hf_config, KeySettings& settings) {
      if (const Json* types = find_value(hf_config, "layer_types"))
        for (const std::string& type : types->get<std::vector<std::string>>())
          if (type != "indexed_attention")
            bad_input("layer_types: {} is not known: expected indexed_attention in all layers", type);
      const Json* types = find_value(hf_config, "mlp_layer_types");
      if (!types) return;
      const auto kinds = types->get<std::vector<std::string>>();
      const auto sparse = std::find(kinds.begin(), kinds.end(), "sparse");
      if (std::count(kinds.begin(), sparse, "dense") + std::count(sparse, kinds.end(), "sparse") != std::ssize(kinds))
        bad_input("mlp_layer_types: expected layers of type dense, then layers of type sparse");
      add_setting(settings, "moe.first_dense", sparse - kinds.begin());
    },
    [](const Config&, Json&) {}};

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
      add_setting(settings, "moe.aux_loss", factor->get<double>() * top_k);
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

const ConfigRule gpt2_ffn_width_rule{
    [](const Json& hf_config, KeySettings& settings) {
      add_setting(settings, "model.d_ff", int_or(hf_config, "n_inner", four_times(hf_config, "n_embd")));
    },
    [](const Config& config, Json& hf_config) {
      const bool usual = config.model.d_ff == 4 * config.model.d_model;
      hf_config["n_inner"] = usual && !find_value(hf_config, "n_inner") ? Json() : Json(config.model.d_ff);
    }};

const ConfigRule phi3_pad_token_rule = rule_of_pad_token<32000>;
const ConfigRule glm_pad_token_rule = rule_of_pad_token<151329>;
const ConfigRule smollm3_pad_token_rule = rule_of_pad_token<128004>;
const ConfigRule modernbert_pad_token_rule = rule_of_pad_token<50283>;

const ConfigRule bias_rule = rule_of_biases<llama_bias_keys>;
const ConfigRule seed_oss_bias_rule = rule_of_biases<seed_oss_bias_keys>;
const ConfigRule helium_bias_rule = rule_of_biases<helium_bias_keys>;

const ConfigRule roberta_positions_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Index rows = hf_config.at("max_position_embeddings").get<std::int64_t>();
      if (rows < 3) bad_input("max_position_embeddings = {}: expected 3 or more", rows);
      add_setting(settings, "model.seq_len", rows - 2);
    },
    [](const Config& config, Json& hf_config) { hf_config["max_position_embeddings"] = config.model.seq_len + 2; }};

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
      if (bool_or(hf_config, "alibi", false)) add_setting(settings, "model.alibi_scale", 1 / std::sqrt(head));
      add_setting(settings, "model.parallel_block", new_architecture || bool_or(hf_config, "parallel_attn", true));
      add_setting(settings, "model.kv_heads", kv);
      settings.emplace_back("model.parallel_norms",
                            new_architecture && int_or(hf_config, "num_ln_in_parallel_attn", 2) == 2 ? "2" : "1");
      add_setting(settings, "model.d_ff", int_or(hf_config, "ffn_hidden_size", four_times(hf_config, "hidden_size")));
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
      add_setting(settings, "moe.every", step);
      add_setting(settings, "moe.first_dense", dense);
      if (!others.empty()) settings.emplace_back("moe.dense_layers", join(others, ", "));
    },
    [](const Config& config, Json& hf_config) {
      hf_config["decoder_sparse_step"] = config.moe.every;
      Json mlp_only = Json::array();
      for (Index layer = 0; layer < config.model.layers; ++layer)
        if (!config.is_moe(layer) && (layer + 1) % config.moe.every == 0) mlp_only.push_back(layer);
      hf_config["mlp_only_layers"] = mlp_only;
    }};

// A value is a number, or a list with one for each layer. Here all layers have the same.
const ConfigRule hunyuan_experts_rule{
    [](const Json& hf_config, KeySettings& settings) {
      for (const auto& [hf_name, key] : hunyuan_expert_keys) {
        const Json* value = find_value(hf_config, hf_name);
        if (!value) bad_input("it has no {}, which hunyuan_v1_moe models need", hf_name);
        if (value->is_array()) {
          const auto list = value->get<std::vector<std::int64_t>>();
          if (list.empty() || std::count(list.begin(), list.end(), list.front()) != std::ssize(list))
            bad_input("{} = {}: only a number, or the same one for each layer, can be read", hf_name, value->dump());
          add_setting(settings, key, list.front());
        } else {
          settings.emplace_back(key, setting_text(*value));
        }
      }
    },
    [](const Config& config, Json& hf_config) {
      for (const auto& [hf_name, key] : hunyuan_expert_keys) {
        const Json value = setting_json(key, value_of(config, key));
        Json list = Json::array();
        for (Index layer = 0; layer < config.model.layers; ++layer) list.push_back(value);
        const Json* before = find_value(hf_config, hf_name);
        if (!before || *before != list) hf_config[hf_name] = value;
      }
    }};

// Layer i has experts if interval divides i + 1, and i lies between the first and the last one.
const ConfigRule ernie_moe_layers_rule{
    [](const Json& hf_config, KeySettings& settings) {
      const Index layers = hf_config.at("num_hidden_layers").get<std::int64_t>();
      const Index interval = int_or(hf_config, "moe_layer_interval", 1), first = int_or(hf_config, first_moe_layer, 1);
      const Index end = int_or(hf_config, last_moe_layer, -1), last = end == -1 ? layers - 1 : end;
      const std::tuple<std::string_view, Index, Index> bounds[] = {
          {"num_hidden_layers", layers, 1}, {"moe_layer_interval", interval, 1}, {first_moe_layer, first, 0}};
      for (const auto& [key, value, least] : bounds)
        if (value < least || value > max_layers) bad_input("{} = {}: expected {} to {}", key, value, least, max_layers);
      Index first_dense = interval - 1;
      while (first_dense < first) first_dense += interval;
      std::vector<std::string> dense;
      for (Index layer = first_dense; layer < layers; layer += interval)
        if (layer > last) dense.push_back(fmt::format("{}", layer));
      add_setting(settings, "moe.every", interval);
      add_setting(settings, "moe.first_dense", first_dense);
      settings.emplace_back("moe.dense_layers", join(dense, ", "));
    },
    [](const Config& config, Json& hf_config) {
      Index first = config.model.layers, last = -1;
      for (Index layer = 0; layer < config.model.layers; ++layer)
        if (config.is_moe(layer)) {
          first = std::min(first, layer);
          last = layer;
        }
      const bool to_the_end = last + config.moe.every >= config.model.layers;
      hf_config["moe_layer_interval"] = config.moe.every;
      if (int_or(hf_config, first_moe_layer, -1) < 0) hf_config[first_moe_layer] = first;
      if (!find_value(hf_config, last_moe_layer)) hf_config[last_moe_layer] = to_the_end ? Index{-1} : last;
    }};

}  // namespace sy
