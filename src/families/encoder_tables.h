// Tables of the families of encoders: tensors (TensorRow) and keys of config.json (ConfigRow). Only
// encoder_families.cpp includes it.
#pragma once

#include "src/families/config_tables.h"

namespace sy::tables {

// ---- tensors ----

inline constexpr TensorRow bert_embedding[] = {
    {"embeddings.word_embeddings.weight", "embedding.weight", "V D -> V D"},
    {"embeddings.token_type_embeddings.weight", "segment.weight", "P D -> P D"},
    {"embeddings.LayerNorm.*", "embedding_norm.*", "D -> D"},
};
inline constexpr TensorRow bert_model[] = {
    {"embeddings.position_embeddings.weight", "position.weight", "P D -> P D"},
    {"/cls.predictions.transform.dense.*", "output_transform.*", "D I -> D I; D -> D"},
    {"/cls.predictions.transform.LayerNorm.*", "output_transform_norm.*", "D -> D"},
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
    {"/lm_head.dense.*", "output_transform.*", "D I -> D I; D -> D"},
    {"/lm_head.layer_norm.*", "output_transform_norm.*", "D -> D"},
    {"/lm_head.bias", "output.bias", "V -> V", "model.tie_embeddings=true"},
    {"/lm_head.bias", "", "-> V", "model.tie_embeddings=false"},
    {"/lm_head.decoder.weight", "output.weight", "V D -> V D"},
    {"/lm_head.decoder.bias", "output.bias", "V -> V", "model.tie_embeddings=false"},
};
inline constexpr TensorRow bert_layer[] = {
    {"attention.self.query.*", "attention.q.*", "H i D -> (H i) D; H i -> (H i)"},
    {"attention.self.key.*", "attention.k.*", "K i D -> (K i) D; K i -> (K i)"},
    {"attention.self.value.*", "attention.v.*", "K i D -> (K i) D; K i -> (K i)"},
    {"attention.output.dense.*", "attention.out.*", "D H i -> D (H i); D -> D"},
    {"attention.output.LayerNorm.*", "attention_norm.*", "D -> D"},
    {"intermediate.dense.*", "mlp.up.*", "0 F D -> F D; 0 F -> F"},
    {"output.dense.*", "mlp.down.*", "D F -> D F; D -> D"},
    {"output.LayerNorm.*", "ffn_norm.*", "D -> D"},
};
inline constexpr TensorRow modernbert_model[] = {
    {"embeddings.tok_embeddings.weight", "embedding.weight", "V D -> V D"},
    {"embeddings.norm.*", "embedding_norm.*", "D -> D"},
    {"final_norm.*", "final_norm.*", "D -> D"},
    {"/head.dense.weight", "output_transform.weight", "D I -> D I"},
    {"/head.norm.*", "output_transform_norm.*", "D -> D"},
    {"/decoder.*", "output.*", "V D -> V D; V -> V"},
};
inline constexpr TensorRow modernbert_layer[] = {
    {"attn_norm.*", "attention_norm.*", "D -> D"},
    {"attn.Wqkv.weight", "attention.q.weight", "H i D -> (+H i) D"},
    {"attn.Wqkv.weight", "attention.k.weight", "K i D -> (+K i) D"},
    {"attn.Wqkv.weight", "attention.v.weight", "K i D -> (+K i) D"},
    {"attn.Wo.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"mlp_norm.*", "ffn_norm.*", "D -> D"},
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
