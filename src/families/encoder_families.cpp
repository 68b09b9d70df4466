// Families of encoders, and of encoder-decoders.
#include "src/families/config_rules.h"
#include "src/families/config_tables.h"
#include "src/families/encoder_tables.h"
#include "src/families/pair_tables.h"
#include "src/families/tensor_tables.h"

namespace sy {
namespace {

// Returns a family whose names outside of FFNs are those of T5. mlp: of both stacks
Family t5_family(std::string_view name, std::string_view architecture, std::span<const TensorRow> mlp,
                 std::vector<std::span<const ConfigRow>> config_rows, std::vector<const ConfigRule*> rules,
                 std::vector<std::string_view> ignored) {
  using namespace tables;
  return family({"", "encoder.block.{}.", {t5_model}}, name, architecture, {t5_attention, mlp}, std::move(config_rows),
                std::move(rules), std::move(ignored), "decoder.block.{}.", {t5_attention, t5_cross_attention, mlp});
}

}  // namespace

std::vector<Family> encoder_families() {
  using namespace tables;
  constexpr std::string_view cross_attention_bias = "EncDecAttention.relative_attention_bias.weight";
  return {
      family({"bert.", "encoder.layer.{}.", {bert_embedding, bert_model}}, "bert", "BertForMaskedLM", {bert_layer},
             {encoder_keys, sizes_without_length, bert_keys, bert_positions, tied}, {},
             {"position_ids", "pooler.dense.weight", "pooler.dense.bias", "cls.seq_relationship.weight",
              "cls.seq_relationship.bias", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}),
      family({"roberta.", "encoder.layer.{}.", {bert_embedding, roberta_model}}, "roberta", "RobertaForMaskedLM",
             {bert_layer}, {encoder_keys, sizes_without_length, bert_keys, roberta_padding, tied},
             {&roberta_positions_rule},
             {"position_ids", "pooler.dense.weight", "pooler.dense.bias", "lm_head.decoder.weight",
              "lm_head.decoder.bias"}),
      family({"model.", "layers.{}.", {modernbert_model}}, "modernbert", "ModernBertForMaskedLM", {modernbert_layer},
             {sizes, dense_width, encoder_keys, modernbert_keys, no_bias, tied},
             {&modernbert_window_rule, &modernbert_rope_rule, &modernbert_pad_token_rule}, {"decoder.weight"}),
      t5_family("t5", "T5ForConditionalGeneration", t5_mlp, {t5_keys, t5_ffn, t5_output},
                {&t5_stacks_rule, &t5_output_scale_rule}, {"embed_tokens.weight", cross_attention_bias}),
      t5_family("mt5", "MT5ForConditionalGeneration", t5_mlp, {t5_keys, mt5_ffn, mt5_output},
                {&t5_stacks_rule, &mt5_output_scale_rule}, {"embed_tokens.weight"}),
      t5_family("switch_transformers", "SwitchTransformersForConditionalGeneration", switch_mlp,
                {t5_keys, switch_keys, t5_output}, {&t5_stacks_rule, &switch_output_scale_rule, &switch_layers_rule},
                {"embed_tokens.weight", cross_attention_bias}),
      family({"model.", "encoder.layers.{}.", {bart_model, bart_positions}}, "bart", "BartForConditionalGeneration",
             {qkv_projections, opt_attention_out, opt_layer}, {bart_keys, bart_only}, {&bart_positions_rule},
             {"embed_tokens.weight"}, "decoder.layers.{}.",
             {qkv_projections, opt_attention_out, opt_layer, bart_cross_attention}),
      family({"led.", "encoder.layers.{}.", {bart_model, led_positions}}, "led", "LEDForConditionalGeneration",
             {led_encoder_attention, opt_layer}, {bart_keys, led_only}, {&led_window_rule}, {"embed_tokens.weight"},
             "decoder.layers.{}.", {qkv_projections, opt_attention_out, opt_layer, bart_cross_attention}),
  };
}

}  // namespace sy
