// Tables of the families of encoder-decoders: tensors (TensorRow) and keys of config.json
// (ConfigRow). Only encoder_families.cpp includes it.
#pragma once

#include "src/families/config_tables.h"

namespace sy::tables {

// ---- tensors ----

inline constexpr TensorRow t5_model[] = {
    {"shared.weight", "embedding.weight", "V D -> V D"},
    {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "encoder.relative_bias.weight",
     "H R -> R H"},
    {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "decoder.relative_bias.weight",
     "H R -> R H"},
    {"encoder.final_layer_norm.weight", "encoder.final_norm.weight", "D -> D"},
    {"decoder.final_layer_norm.weight", "decoder.final_norm.weight", "D -> D"},
    {"lm_head.weight", "output.weight", "V D -> V D"},
};
inline constexpr TensorRow t5_attention[] = {
    {"layer.0.layer_norm.weight", "attention_norm.weight", "D -> D"},
    {"layer.0.SelfAttention.q.weight", "attention.q.weight", "H i D -> (H i) D"},
    {"layer.0.SelfAttention.k.weight", "attention.k.weight", "K i D -> (K i) D"},
    {"layer.0.SelfAttention.v.weight", "attention.v.weight", "K i D -> (K i) D"},
    {"layer.0.SelfAttention.o.weight", "attention.out.weight", "D H i -> D (H i)"},
};
inline constexpr TensorRow t5_cross_attention[] = {
    {"layer.1.layer_norm.weight", "cross_attention_norm.weight", "D -> D"},
    {"layer.1.EncDecAttention.q.weight", "cross_attention.q.weight", "H i D -> (H i) D"},
    {"layer.1.EncDecAttention.k.weight", "cross_attention.k.weight", "K i D -> (K i) D"},
    {"layer.1.EncDecAttention.v.weight", "cross_attention.v.weight", "K i D -> (K i) D"},
    {"layer.1.EncDecAttention.o.weight", "cross_attention.out.weight", "D H i -> D (H i)"},
};
inline constexpr TensorRow t5_mlp[] = {
    {"layer.#.layer_norm.weight", "ffn_norm.weight", "D -> D"},
    {"layer.#.DenseReluDense.wi.weight", "mlp.up.weight", "0 F D -> F D", "model.ffn=relu"},
    {"layer.#.DenseReluDense.wi_0.weight", "mlp.up.weight", "0 F D -> F D", "model.ffn=geglu_tanh"},
    {"layer.#.DenseReluDense.wi_1.weight", "mlp.up.weight", "1 F D -> F D", "model.ffn=geglu_tanh"},
    {"layer.#.DenseReluDense.wo.weight", "mlp.down.weight", "D F -> D F"},
};
inline constexpr TensorRow switch_mlp[] = {
    {"layer.#.layer_norm.weight", "ffn_norm.weight", "D -> D"},
    {"layer.#.mlp.wi.weight", "mlp.up.weight", "0 F D -> F D"},
    {"layer.#.mlp.wo.weight", "mlp.down.weight", "D F -> D F"},
    {"layer.#.mlp.router.classifier.*", "moe.router.*", "E D -> E D; E -> E"},
    {"layer.#.mlp.experts.expert_{}.wi.weight", "moe.experts.up.weight", "e 0 F D -> F D"},
    {"layer.#.mlp.experts.expert_{}.wo.weight", "moe.experts.down.weight", "e D F -> D F"},
};

inline constexpr TensorRow bart_model[] = {
    {"shared.weight", "embedding.weight", "V D -> V D"},
    {"encoder.layernorm_embedding.*", "encoder.embedding_norm.*", "D -> D"},
    {"decoder.layernorm_embedding.*", "decoder.embedding_norm.*", "D -> D"},
    {"/final_logits_bias", "output.bias", "V -> 1 V"},
};
// The first two rows of the positions belong to padding; no parameter covers them.
inline constexpr TensorRow bart_positions[] = {
    {"encoder.embed_positions.weight", "", "-> +2 D"},
    {"encoder.embed_positions.weight", "encoder.position.weight", "P D -> +P D"},
    {"decoder.embed_positions.weight", "", "-> +2 D"},
    {"decoder.embed_positions.weight", "decoder.position.weight", "P D -> +P D"},
};
inline constexpr TensorRow led_positions[] = {
    {"encoder.embed_positions.weight", "encoder.position.weight", "P D -> P D"},
    {"decoder.embed_positions.weight", "decoder.position.weight", "P D -> P D"},
};
inline constexpr TensorRow bart_cross_attention[] = {
    {"encoder_attn.q_proj.*", "cross_attention.q.*", "H i D -> (H i) D; H i -> (H i)"},
    {"encoder_attn.k_proj.*", "cross_attention.k.*", "K i D -> (K i) D; K i -> (K i)"},
    {"encoder_attn.v_proj.*", "cross_attention.v.*", "K i D -> (K i) D; K i -> (K i)"},
    {"encoder_attn.out_proj.*", "cross_attention.out.*", "D H i -> D (H i); D -> D"},
    {"encoder_attn_layer_norm.*", "cross_attention_norm.*", "D -> D"},
};

inline constexpr TensorRow led_encoder_attention[] = {
    {"self_attn.longformer_self_attn.query.*", "attention.q.*", "H i D -> (H i) D; H i -> (H i)"},
    {"self_attn.longformer_self_attn.key.*", "attention.k.*", "K i D -> (K i) D; K i -> (K i)"},
    {"self_attn.longformer_self_attn.value.*", "attention.v.*", "K i D -> (K i) D; K i -> (K i)"},
    {"self_attn.longformer_self_attn.query_global.*", "attention.global.q.*", "H i D -> (H i) D; H i -> (H i)"},
    {"self_attn.longformer_self_attn.key_global.*", "attention.global.k.*", "K i D -> (K i) D; K i -> (K i)"},
    {"self_attn.longformer_self_attn.value_global.*", "attention.global.v.*", "K i D -> (K i) D; K i -> (K i)"},
    {"self_attn.output.*", "attention.out.*", "D H i -> D (H i); D -> D"},
};

// ---- keys of config.json ----

inline const ConfigRow t5_keys[] = {
    {"", "model.kind", {{"", "encoder_decoder"}}},
    {"vocab_size", "model.vocab"},
    {"d_model", "model.d_model"},
    {"d_kv", "model.head_dim"},
    {"d_ff", "model.d_ff"},
    {"num_layers", "encoder.layers"},
    {"num_heads", "model.heads"},
    {"relative_attention_num_buckets", "model.t5_buckets", {}, "32"},
    {"relative_attention_max_distance", "model.t5_max_distance", {}, "128"},
    {"layer_norm_epsilon", "model.norm_eps", {}, "1e-6"},
    {"decoder_start_token_id", "model.start_token", {}, "0"},
    {"n_positions", "model.seq_len", {}, ""},
    {"is_encoder_decoder", "", {{"true", ""}}, "true"},
    {"", "model.position", {{"", "t5"}}},
    {"", "model.attention_scale", {{"", "1"}}},
};
inline const ConfigRow t5_ffn[] = {
    {"feed_forward_proj", "model.ffn", {{"\"relu\"", "relu"}, {"\"gated-gelu\"", "geglu_tanh"}}, "\"relu\""},
};
inline const ConfigRow mt5_ffn[] = {
    {"feed_forward_proj", "model.ffn", {{"\"relu\"", "relu"}, {"\"gated-gelu\"", "geglu_tanh"}}, "\"gated-gelu\""},
};
// T5 v1.1 and mT5 have an output of their own, which v1.0 shares with the embedding and scales.
inline const ConfigRow t5_output[] = {
    {"tie_word_embeddings", "model.tie_embeddings", {{"true", "true"}, {"false", "false"}}, "true"},
};
// Versions of transformers differ in the value of an absent key.
inline const ConfigRow mt5_output[] = {
    {"tie_word_embeddings", "model.tie_embeddings", {{"true", "true"}, {"false", "false"}}},
};
inline const ConfigRow switch_keys[] = {
    {"num_experts", "moe.experts", {}, "8"},
    {"router_bias", "moe.router_bias", {}, "false"},
    {"router_jitter_noise", "moe.jitter", {}, "0.01"},
    {"router_z_loss_coef", "moe.z_loss", {}, "0.001"},
    {"router_aux_loss_coef", "moe.aux_loss", {}, "0.001"},
    {"dense_act_fn", "model.ffn", {{"\"relu\"", "relu"}}, "\"relu\""},
    {"", "moe.top_k", {{"", "1"}}},
    {"", "moe.renormalize", {{"", "false"}}},
};
inline const ConfigRow bart_keys[] = {
    {"", "model.kind", {{"", "encoder_decoder"}}},
    {"vocab_size", "model.vocab"},
    {"d_model", "model.d_model"},
    {"encoder_layers", "encoder.layers"},
    {"decoder_layers", "decoder.layers"},
    {"encoder_attention_heads", "encoder.heads"},
    {"decoder_attention_heads", "decoder.heads"},
    {"encoder_ffn_dim", "encoder.d_ff"},
    {"decoder_ffn_dim", "decoder.d_ff"},
    {"activation_function", "model.ffn", activations, "\"gelu\""},
    {"decoder_start_token_id", "model.start_token", {}, "2"},
    {"is_encoder_decoder", "", {{"true", ""}}, "true"},
    // Without it, transformers has three embeddings.
    {"tie_word_embeddings", "model.tie_embeddings", {{"true", "true"}}, "true"},
    {"", "model.norm", {{"", "layernorm"}}},
    {"", "model.norm_eps", {{"", "1e-5"}}},
    {"", "model.norm_position", {{"", "post"}}},
    {"", "model.embedding_norm", {{"", "true"}}},
    {"", "model.position", {{"", "learned"}}},
    {"", "model.bias", {{"", "all"}}},
    {"", "model.output_bias", {{"", "true"}}},
};
inline const ConfigRow bart_only[] = {
    {"max_position_embeddings", "model.seq_len"},
    {"scale_embedding", "model.scale_embedding", {}, "false"},
};
inline const ConfigRow led_only[] = {
    {"max_decoder_position_embeddings", "model.seq_len"},   {"max_decoder_position_embeddings", "decoder.seq_len"},
    {"max_encoder_position_embeddings", "encoder.seq_len"}, {"", "encoder.attention", {{"", "longformer"}}},
    {"", "encoder.global_projections", {{"", "true"}}},
};

}  // namespace sy::tables
