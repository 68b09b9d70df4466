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
// The FFN of layer 1 of a block of the encoder, and of layer 2 of one of the decoder.
inline constexpr TensorRow t5_encoder_mlp[] = {
    {"layer.1.layer_norm.weight", "ffn_norm.weight", "D -> D"},
    {"layer.1.DenseReluDense.wi.weight", "mlp.up.weight", "0 F D -> F D", "model.ffn=relu"},
    {"layer.1.DenseReluDense.wi_0.weight", "mlp.up.weight", "0 F D -> F D", "model.ffn=geglu_tanh"},
    {"layer.1.DenseReluDense.wi_1.weight", "mlp.up.weight", "1 F D -> F D", "model.ffn=geglu_tanh"},
    {"layer.1.DenseReluDense.wo.weight", "mlp.down.weight", "D F -> D F"},
};
inline constexpr TensorRow t5_decoder_mlp[] = {
    {"layer.2.layer_norm.weight", "ffn_norm.weight", "D -> D"},
    {"layer.2.DenseReluDense.wi.weight", "mlp.up.weight", "0 F D -> F D", "model.ffn=relu"},
    {"layer.2.DenseReluDense.wi_0.weight", "mlp.up.weight", "0 F D -> F D", "model.ffn=geglu_tanh"},
    {"layer.2.DenseReluDense.wi_1.weight", "mlp.up.weight", "1 F D -> F D", "model.ffn=geglu_tanh"},
    {"layer.2.DenseReluDense.wo.weight", "mlp.down.weight", "D F -> D F"},
};
inline constexpr TensorRow switch_encoder_mlp[] = {
    {"layer.1.layer_norm.weight", "ffn_norm.weight", "D -> D"},
    {"layer.1.mlp.wi.weight", "mlp.up.weight", "0 F D -> F D"},
    {"layer.1.mlp.wo.weight", "mlp.down.weight", "D F -> D F"},
    {"layer.1.mlp.router.classifier.weight", "moe.router.weight", "E D -> E D"},
    {"layer.1.mlp.router.classifier.bias", "moe.router.bias", "E -> E"},
    {"layer.1.mlp.experts.expert_{}.wi.weight", "moe.experts.up.weight", "e 0 F D -> F D"},
    {"layer.1.mlp.experts.expert_{}.wo.weight", "moe.experts.down.weight", "e D F -> D F"},
};
inline constexpr TensorRow switch_decoder_mlp[] = {
    {"layer.2.layer_norm.weight", "ffn_norm.weight", "D -> D"},
    {"layer.2.mlp.wi.weight", "mlp.up.weight", "0 F D -> F D"},
    {"layer.2.mlp.wo.weight", "mlp.down.weight", "D F -> D F"},
    {"layer.2.mlp.router.classifier.weight", "moe.router.weight", "E D -> E D"},
    {"layer.2.mlp.router.classifier.bias", "moe.router.bias", "E -> E"},
    {"layer.2.mlp.experts.expert_{}.wi.weight", "moe.experts.up.weight", "e 0 F D -> F D"},
    {"layer.2.mlp.experts.expert_{}.wo.weight", "moe.experts.down.weight", "e D F -> D F"},
};

inline constexpr TensorRow bart_model[] = {
    {"shared.weight", "embedding.weight", "V D -> V D"},
    {"encoder.layernorm_embedding.weight", "encoder.embedding_norm.weight", "D -> D"},
    {"encoder.layernorm_embedding.bias", "encoder.embedding_norm.bias", "D -> D"},
    {"decoder.layernorm_embedding.weight", "decoder.embedding_norm.weight", "D -> D"},
    {"decoder.layernorm_embedding.bias", "decoder.embedding_norm.bias", "D -> D"},
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
    {"encoder_attn.q_proj.weight", "cross_attention.q.weight", "H i D -> (H i) D"},
    {"encoder_attn.q_proj.bias", "cross_attention.q.bias", "H i -> (H i)"},
    {"encoder_attn.k_proj.weight", "cross_attention.k.weight", "K i D -> (K i) D"},
    {"encoder_attn.k_proj.bias", "cross_attention.k.bias", "K i -> (K i)"},
    {"encoder_attn.v_proj.weight", "cross_attention.v.weight", "K i D -> (K i) D"},
    {"encoder_attn.v_proj.bias", "cross_attention.v.bias", "K i -> (K i)"},
    {"encoder_attn.out_proj.weight", "cross_attention.out.weight", "D H i -> D (H i)"},
    {"encoder_attn.out_proj.bias", "cross_attention.out.bias", "D -> D"},
    {"encoder_attn_layer_norm.weight", "cross_attention_norm.weight", "D -> D"},
    {"encoder_attn_layer_norm.bias", "cross_attention_norm.bias", "D -> D"},
};

inline constexpr TensorRow led_encoder_attention[] = {
    {"self_attn.longformer_self_attn.query.weight", "attention.q.weight", "H i D -> (H i) D"},
    {"self_attn.longformer_self_attn.query.bias", "attention.q.bias", "H i -> (H i)"},
    {"self_attn.longformer_self_attn.key.weight", "attention.k.weight", "K i D -> (K i) D"},
    {"self_attn.longformer_self_attn.key.bias", "attention.k.bias", "K i -> (K i)"},
    {"self_attn.longformer_self_attn.value.weight", "attention.v.weight", "K i D -> (K i) D"},
    {"self_attn.longformer_self_attn.value.bias", "attention.v.bias", "K i -> (K i)"},
    {"self_attn.longformer_self_attn.query_global.weight", "attention.global.q.weight", "H i D -> (H i) D"},
    {"self_attn.longformer_self_attn.query_global.bias", "attention.global.q.bias", "H i -> (H i)"},
    {"self_attn.longformer_self_attn.key_global.weight", "attention.global.k.weight", "K i D -> (K i) D"},
    {"self_attn.longformer_self_attn.key_global.bias", "attention.global.k.bias", "K i -> (K i)"},
    {"self_attn.longformer_self_attn.value_global.weight", "attention.global.v.weight", "K i D -> (K i) D"},
    {"self_attn.longformer_self_attn.value_global.bias", "attention.global.v.bias", "K i -> (K i)"},
    {"self_attn.output.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"self_attn.output.bias", "attention.out.bias", "D -> D"},
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
