// Tables of the family reformer (Family). Only the list of dense families includes this file.
#pragma once

#include "src/families/config_tables.h"
#include "src/families/family.h"

namespace sy::tables {

// Layers with a hash have one projection of queries and keys.
inline constexpr TensorRow reformer_model[] = {
    {"embeddings.word_embeddings.weight", "embedding.weight", "V D -> V D"},
    {"embeddings.position_embeddings.weights.0", "row_position.weight", "R A -> R 1 A"},
    {"embeddings.position_embeddings.weights.1", "column_position.weight", "C B -> 1 C B"},
    {"embeddings.position_embeddings.embedding.weight", "position.weight", "P D -> P D"},
    {"encoder.layer_norm.*", "final_norm.*", "W -> W"},
    {"/lm_head.decoder.*", "output.*", "V W -> V W; V -> V"},
    {"/lm_head.bias", "/output.bias", "V -> V"},
};
inline constexpr TensorRow reformer_layer[] = {
    {"attention.layer_norm.*", "attention_norm.*", "D -> D"},
    {"attention.self_attention.query.weight", "attention.q.weight", "H i D -> (H i) D", "attention.k.weight"},
    {"attention.self_attention.query_key.weight", "attention.q.weight", "H i D -> (H i) D", "!attention.k.weight"},
    {"attention.self_attention.key.weight", "attention.k.weight", "H i D -> (H i) D"},
    {"attention.self_attention.value.weight", "attention.v.weight", "H i D -> (H i) D"},
    {"attention.output.dense.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"feed_forward.layer_norm.*", "ffn_norm.*", "D -> D"},
    {"feed_forward.dense.dense.*", "mlp.up.*", "0 F D -> F D; 0 F -> F"},
    {"feed_forward.output.dense.*", "mlp.down.*", "D F -> D F; D -> D"},
};

// A model with a causal mask. The rule reformer_rule reads the kinds of layers, the buckets and the
// positions.
inline const ConfigRow reformer_keys[] = {
    {"vocab_size", "model.vocab", {}, "320"},
    {"hidden_size", "model.d_model", {}, "256"},
    {"num_attention_heads", "model.heads", {}, "12"},
    {"attention_head_size", "model.head_dim", {}, "64"},
    {"feed_forward_size", "model.d_ff", {}, "512"},
    {"max_position_embeddings", "model.seq_len", {}, "4096"},
    {"layer_norm_eps", "model.norm_eps", {}, "1e-12"},
    {"hidden_act", "model.ffn", activations, "\"relu\""},
    {"is_decoder", "", {{"true", ""}}, "false"},
    {"num_hashes", "model.lsh_rounds", {}, "1"},
    {"lsh_attn_chunk_length", "model.lsh_chunk_length", {}, "64"},
    {"lsh_num_chunks_before", "model.lsh_chunks_before", {}, "1"},
    {"lsh_num_chunks_after", "model.lsh_chunks_after", {{"0", "0"}}, "0"},
    {"local_attn_chunk_length", "model.local_chunk_length", {}, "64"},
    {"local_num_chunks_before", "model.local_chunks_before", {}, "1"},
    {"local_num_chunks_after", "", {{"0", ""}}, "0"},
    {"", "model.bias", {{"", "mlp"}}},
    {"", "model.output_bias", {{"", "true"}}},
    {"", "train.reversible", {{"", "true"}}},
    {"", "model.reversible_output", {{"", "concat"}}},
};

}  // namespace sy::tables
