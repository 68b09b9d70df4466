// Families of encoders, and of encoder-decoders.
#include "src/families/config_rules.h"
#include "src/families/config_tables.h"
#include "src/families/encoder_tables.h"
#include "src/families/family_lists.h"
#include "src/families/pair_tables.h"
#include "src/families/tensor_tables.h"

namespace sy {

std::vector<Family> encoder_families() {
  using namespace tables;
  return {
      {"bert",
       "BertForMaskedLM",
       "bert.",
       "encoder.layer.{}.",
       {bert_embedding, bert_model},
       {bert_layer},
       {encoder_keys, bert_keys, bert_positions, tied},
       {},
       {"position_ids", "pooler.dense.weight", "pooler.dense.bias", "cls.seq_relationship.weight",
        "cls.seq_relationship.bias", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}},
      {"roberta",
       "RobertaForMaskedLM",
       "roberta.",
       "encoder.layer.{}.",
       {bert_embedding, roberta_model},
       {bert_layer},
       {encoder_keys, bert_keys, roberta_padding, tied},
       {&roberta_positions_rule},
       {"position_ids", "pooler.dense.weight", "pooler.dense.bias", "lm_head.decoder.weight", "lm_head.decoder.bias"}},
      {"modernbert",
       "ModernBertForMaskedLM",
       "model.",
       "layers.{}.",
       {modernbert_model},
       {modernbert_layer},
       {sizes, dense_width, encoder_keys, modernbert_keys, no_bias, tied},
       {&modernbert_window_rule, &modernbert_rope_rule, &modernbert_pad_token_rule},
       {"decoder.weight"}},
      {"t5",
       "T5ForConditionalGeneration",
       "",
       "encoder.block.{}.",
       {t5_model},
       {t5_attention, t5_encoder_mlp},
       {t5_keys, t5_ffn, t5_output},
       {&t5_stacks_rule},
       {"embed_tokens.weight", "EncDecAttention.relative_attention_bias.weight"},
       "decoder.block.{}.",
       {t5_attention, t5_cross_attention, t5_decoder_mlp}},
      {"mt5",
       "MT5ForConditionalGeneration",
       "",
       "encoder.block.{}.",
       {t5_model},
       {t5_attention, t5_encoder_mlp},
       {t5_keys, mt5_ffn, mt5_output},
       {&t5_stacks_rule},
       {"embed_tokens.weight"},
       "decoder.block.{}.",
       {t5_attention, t5_cross_attention, t5_decoder_mlp}},
      {"switch_transformers",
       "SwitchTransformersForConditionalGeneration",
       "",
       "encoder.block.{}.",
       {t5_model},
       {t5_attention, switch_encoder_mlp},
       {t5_keys, switch_keys, t5_output},
       {&t5_stacks_rule, &switch_layers_rule},
       {"embed_tokens.weight", "EncDecAttention.relative_attention_bias.weight"},
       "decoder.block.{}.",
       {t5_attention, t5_cross_attention, switch_decoder_mlp}},
      {"bart",
       "BartForConditionalGeneration",
       "model.",
       "encoder.layers.{}.",
       {bart_model},
       {qkv_projections, opt_layer},
       {bart_keys, tied},
       {&bart_positions_rule},
       {"embed_tokens.weight"},
       "decoder.layers.{}.",
       {qkv_projections, opt_layer, bart_cross_attention}},
  };
}

}  // namespace sy
