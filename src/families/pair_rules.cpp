// Conversions of keys of config.json of encoder-decoders (config_rules.h).
#include <fmt/format.h>

#include <cmath>

#include "src/families/config_rules.h"
#include "src/families/rule_helpers.h"

namespace sy {
namespace {

Index decoder_layers(const Json& hf_config) {
  return int_or(hf_config, "num_decoder_layers", hf_config.at("num_layers").get<std::int64_t>());
}

// Period of the layers with experts, the first of which is layer 1, or layer 0 if all have experts.
Index sparse_step(const Json& hf_config, const std::string& stack, Index layers) {
  const Index sparse = int_or(hf_config, fmt::format("num_sparse_{}_layers", stack), 3);
  if (sparse < 0 || sparse > layers) bad_input("num_sparse_{}_layers = {}: expected 0 to {}", stack, sparse, layers);
  return sparse > 0 ? layers / sparse : layers;
}

constexpr std::string_view scales_output = "scale_decoder_outputs";
bool is_tied(const Json& hf_config) {
  return bool_or(hf_config, "tie_word_embeddings", true);
}
// T5 divides the output by the square root of its width.
void scale_output(const Json& hf_config, KeySettings& settings) {
  add_setting(settings, "model.logit_scale", 1 / std::sqrt(hf_config.at("d_model").get<double>()));
}

// Number of keys in a window of LED's encoder without the query itself. It may be listed by layer.
Index led_window(const Json& hf_config) {
  const Json* const value = find_value(hf_config, "attention_window");
  if (!value) return 512;
  Index window = 0;
  for (const Json& of_layer : value->is_array() ? *value : Json::array({*value})) {
    const Index keys = of_layer.get<std::int64_t>();
    if (window > 0 && keys != window)
      bad_input("attention_window = {}: only one window of all layers can be read", value->dump());
    if (keys < 2 || keys % 2 != 0) bad_input("attention_window = {}: expected even numbers from 2 on", value->dump());
    window = keys;
  }
  if (window == 0) bad_input("attention_window = []: expected the window of each layer");
  return window;
}

}  // namespace

const ConfigRule t5_stacks_rule{[](const Json& hf_config, KeySettings& settings) {
                                  add_setting(settings, "decoder.layers", decoder_layers(hf_config));
                                },
                                [](const Config& config, Json& hf_config) {
                                  put(hf_config, "num_decoder_layers", config.stacks.at(1).model.layers);
                                }};

// A key of its own says whether the output is scaled; without it, a tied one is.
const ConfigRule t5_output_scale_rule{[](const Json& hf_config, KeySettings& settings) {
                                        if (bool_or(hf_config, scales_output, is_tied(hf_config)))
                                          scale_output(hf_config, settings);
                                      },
                                      [](const Config& config, Json& hf_config) {
                                        if (find_value(hf_config, scales_output))
                                          hf_config[scales_output] = config.model.logit_scale != 1;
                                      }};
// transformers 5 does not scale the output of mT5. Version 4 scales a tied one, which no published
// model has.
const ConfigRule mt5_output_scale_rule{[](const Json&, KeySettings&) {},
                                       [](const Config& config, Json&) {
                                         if (config.model.tie_embeddings)
                                           bad_input(
                                               "model.tie_embeddings = true: versions of transformers differ in the "
                                               "output of such an mt5 model");
                                       }};
const ConfigRule switch_output_scale_rule{[](const Json& hf_config, KeySettings& settings) {
                                            if (is_tied(hf_config)) scale_output(hf_config, settings);
                                          },
                                          [](const Config&, Json&) {}};

const ConfigRule switch_layers_rule{
    [](const Json& hf_config, KeySettings& settings) {
      if (!hf_config.contains("num_decoder_layers"))
        bad_input("it has no num_decoder_layers, which switch_transformers models need");
      for (const auto& [stack, layers] :
           {std::pair<std::string, Index>{"encoder", hf_config.at("num_layers").get<std::int64_t>()},
            {"decoder", decoder_layers(hf_config)}}) {
        const Index step = sparse_step(hf_config, stack, layers);
        add_setting(settings, stack + ".every", step);
        settings.emplace_back(stack + ".first_dense", step == 1 ? "0" : "1");
      }
    },
    [](const Config& config, Json& hf_config) {
      for (const Config::Kind& stack : config.stacks) {
        const std::string key = fmt::format("num_sparse_{}_layers", stack.name);
        const Json* before = find_value(hf_config, key);
        if (!before || sparse_step(hf_config, stack.name, stack.model.layers) != stack.moe.every)
          hf_config[key] = std::max<Index>(1, stack.model.layers / stack.moe.every);
        hf_config[stack.name + "_sparse_step"] = stack.moe.every;
      }
    }};

const ConfigRule bart_positions_rule{
    [](const Json& hf_config, KeySettings& settings) {
      for (const char* key : {"encoder.seq_len", "decoder.seq_len"})
        copy_setting(hf_config, "max_position_embeddings", settings, key);
    },
    [](const Config& config, Json& hf_config) {
      const Index encoder = config.stacks.at(0).model.seq_len, decoder = config.stacks.at(1).model.seq_len;
      if (encoder != decoder)
        bad_input(
            "encoder.seq_len = {} and decoder.seq_len = {}: the stacks of a bart model have equally many positions",
            encoder, decoder);
      put(hf_config, "max_position_embeddings", encoder);
    }};

// A token sees half of the window on each side, and itself.
const ConfigRule led_window_rule{[](const Json& hf_config, KeySettings& settings) {
                                   add_setting(settings, "encoder.window", led_window(hf_config) / 2 + 1);
                                 },
                                 [](const Config& config, Json& hf_config) {
                                   const Index keys = 2 * (config.stacks.at(0).model.window - 1);
                                   if (keys < 2)
                                     bad_input("encoder.window = {}: a led model needs 2 or more",
                                               config.stacks.at(0).model.window);
                                   const bool known = find_value(hf_config, "attention_window");
                                   if (!known || led_window(hf_config) != keys) hf_config["attention_window"] = keys;
                                 }};

}  // namespace sy
