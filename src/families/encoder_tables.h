// Tables of the families of encoders: tensors (TensorRow) and keys of config.json (ConfigRow). Only
// encoder_families.cpp includes it.
#pragma once

#include "src/families/config_tables.h"

namespace sy::tables {

// ---- tensors ----

inline constexpr TensorRow bert_embedding[] = {
    {"embeddings.word_embeddings.weight", "embedding.weight", "V D -> V D"},
    {"embeddings.token_type_embeddings.weight", "segment.weight", "P D -> P D"},
    {"embeddings.LayerNorm.weight", "embedding_norm.weight", "D -> D"},
    {"embeddings.LayerNorm.bias", "embedding_norm.bias", "D -> D"},
};
inline constexpr TensorRow bert_model[] = {
    {"embeddings.position_embeddings.weight", "position.weight", "P D -> P D"},
    {"/cls.predictions.transform.dense.weight", "output_transform.weight", "D I -> D I"},
    {"/cls.predictions.transform.dense.bias", "output_transform.bias", "D -> D"},
    {"/cls.predictions.transform.LayerNorm.weight", "output_transform_norm.weight", "D -> D"},
    {"/cls.predictions.transform.LayerNorm.bias", "output_transform_norm.bias", "D -> D"},
    {"/cls.predictions.bias", "output.bias", "V -> V", "model.tie_embeddings=true"},
    // Without tied weights, transformers adds the bias beside the weights, and not the other one.
    {"/cls.predictions.bias", "", "-> V", "model.tie_embeddings=false"},
    {"/cls.predictions.decoder.weight", "output.weight", "V D -> V D"},
    {"/cls.predictions.decoder.bias", "output.bias", "V -> V", "model.tie_embeddings=false"},
};
// The first two rows of position_embeddings belong to padding; no parameter covers them.
inline constexpr TensorRow roberta_model[] = {
    {"embeddings.position_embeddings.weight", "", "-> +2 D"},
    {"embeddings.position_embeddings.weight", "position.weight", "P D -> +P D"},
    {"/lm_head.dense.weight", "output_transform.weight", "D I -> D I"},
    {"/lm_head.dense.bias", "output_transform.bias", "D -> D"},
    {"/lm_head.layer_norm.weight", "output_transform_norm.weight", "D -> D"},
    {"/lm_head.layer_norm.bias", "output_transform_norm.bias", "D -> D"},
    {"/lm_head.bias", "output.bias", "V -> V", "model.tie_embeddings=true"},
    {"/lm_head.bias", "", "-> V", "model.tie_embeddings=false"},
    {"/lm_head.decoder.weight", "output.weight", "V D -> V D"},
    {"/lm_head.decoder.bias", "output.bias", "V -> V", "model.tie_embeddings=false"},
};
inline constexpr TensorRow bert_layer[] = {
    {"attention.self.query.weight", "attention.q.weight", "H i D -> (H i) D"},
    {"attention.self.query.bias", "attention.q.bias", "H i -> (H i)"},
    {"attention.self.key.weight", "attention.k.weight", "K i D -> (K i) D"},
    {"attention.self.key.bias", "attention.k.bias", "K i -> (K i)"},
    {"attention.self.value.weight", "attention.v.weight", "K i D -> (K i) D"},
    {"attention.self.value.bias", "attention.v.bias", "K i -> (K i)"},
    {"attention.output.dense.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"attention.output.dense.bias", "attention.out.bias", "D -> D"},
    {"attention.output.LayerNorm.weight", "attention_norm.weight", "D -> D"},
    {"attention.output.LayerNorm.bias", "attention_norm.bias", "D -> D"},
    {"intermediate.dense.weight", "mlp.up.weight", "0 F D -> F D"},
    {"intermediate.dense.bias", "mlp.up.bias", "0 F -> F"},
    {"output.dense.weight", "mlp.down.weight", "D F -> D F"},
    {"output.dense.bias", "mlp.down.bias", "D -> D"},
    {"output.LayerNorm.weight", "ffn_norm.weight", "D -> D"},
    {"output.LayerNorm.bias", "ffn_norm.bias", "D -> D"},
};
inline constexpr TensorRow modernbert_model[] = {
    {"embeddings.tok_embeddings.weight", "embedding.weight", "V D -> V D"},
    {"embeddings.norm.weight", "embedding_norm.weight", "D -> D"},
    {"embeddings.norm.bias", "embedding_norm.bias", "D -> D"},
    {"final_norm.weight", "final_norm.weight", "D -> D"},
    {"final_norm.bias", "final_norm.bias", "D -> D"},
    {"/head.dense.weight", "output_transform.weight", "D I -> D I"},
    {"/head.norm.weight", "output_transform_norm.weight", "D -> D"},
    {"/head.norm.bias", "output_transform_norm.bias", "D -> D"},
    {"/decoder.weight", "output.weight", "V D -> V D"},
    {"/decoder.bias", "output.bias", "V -> V"},
};
inline constexpr TensorRow modernbert_layer[] = {
    {"attn_norm.weight", "attention_norm.weight", "D -> D"},
    {"attn_norm.bias", "attention_norm.bias", "D -> D"},
    {"attn.Wqkv.weight", "attention.q.weight", "H i D -> (+H i) D"},
    {"attn.Wqkv.weight", "attention.k.weight", "K i D -> (+K i) D"},
    {"attn.Wqkv.weight", "attention.v.weight", "K i D -> (+K i) D"},
    {"attn.Wo.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"mlp_norm.weight", "ffn_norm.weight", "D -> D"},
    {"mlp_norm.bias", "ffn_norm.bias", "D -> D"},
    {"mlp.Wi.weight", "mlp.up.weight", "h F D -> (h F) D"},
    {"mlp.Wo.weight", "mlp.down.weight", "D F -> D F"},
};

// ---- keys of config.json ----

inline const ConfigRow encoder_keys[] = {
    {"", "model.kind", {{"", "encoder"}}},
    {"", "model.norm", {{"", "layernorm"}}},
    {"", "model.embedding_norm", {{"", "true"}}},
    {"", "model.output_transform", {{"", "true"}}},
};
inline const ConfigRow bert_keys[] = {
    {"vocab_size", "model.vocab"},
    {"hidden_size", "model.d_model"},
    {"num_hidden_layers", "model.layers"},
    {"num_attention_heads", "model.heads"},
    {"intermediate_size", "model.d_ff"},
    {"type_vocab_size", "model.segments", {}, "2"},
    {"layer_norm_eps", "model.norm_eps", {}, "1e-12"},
    // The transform before the output has the same activation.
    {"hidden_act", "model.ffn", {{"\"gelu\"", "gelu"}}, "\"gelu\""},
    {"is_decoder", "", {{"false", ""}}, "false"},
    {"position_embedding_type", "", {{"\"absolute\"", ""}}, "\"absolute\""},
    {"", "model.norm_position", {{"", "post"}}},
    {"", "model.position", {{"", "learned"}}},
    {"", "model.bias", {{"", "all"}}},
    {"", "model.output_bias", {{"", "true"}}},
};
inline const ConfigRow bert_positions[] = {{"max_position_embeddings", "model.seq_len"}};
// transformers counts positions from pad_token_id + 1.
inline const ConfigRow roberta_padding[] = {{"pad_token_id", "", {{"1", ""}}, "1"}};
inline const ConfigRow modernbert_keys[] = {
    {"norm_eps", "model.norm_eps", {}, "1e-5"},
    {"norm_bias", "model.norm_bias", {}, "false"},
    {"hidden_activation", "model.ffn", {{"\"gelu\"", "geglu"}}, "\"gelu\""},
    {"", "model.first_norm", {{"", "false"}}},
    {"decoder_bias", "model.output_bias", {}, "true"},
    {"mlp_bias", "", {{"false", ""}}, "false"},
    {"classifier_bias", "", {{"false", ""}}, "false"},
    {"classifier_activation", "", {{"\"gelu\"", ""}}, "\"gelu\""},
};

}  // namespace sy::tables
