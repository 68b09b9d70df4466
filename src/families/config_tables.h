// Tables of the keys of config.json (ConfigRow). Families share tables. Only the lists of families
// include this file.
#pragma once

#include "src/families/family.h"

namespace sy::tables {

inline const ConfigRow sizes[] = {
    {"vocab_size", "model.vocab"},
    {"hidden_size", "model.d_model"},
    {"num_hidden_layers", "model.layers"},
    {"num_attention_heads", "model.heads"},
    {"max_position_embeddings", "model.seq_len"},
};
inline const std::span<const ConfigRow> sizes_without_length = std::span(sizes).first(4);
// Heads. In some families absent keys follow from other keys. In others the keys are required
// (`required_*`), since transformers has fixed defaults for them. A null follows from other keys in
// both.
inline const ConfigRow kv_heads[] = {{"num_key_value_heads", "model.kv_heads", {}, ""}};
inline const ConfigRow required_kv_heads[] = {{"num_key_value_heads", "model.kv_heads", {}, "!", true}};
inline const ConfigRow head_width[] = {{"head_dim", "model.head_dim", {}, ""}};
inline const ConfigRow required_head_width[] = {{"head_dim", "model.head_dim", {}, "!", true}};
inline const ConfigRow dense_width[] = {{"intermediate_size", "model.d_ff"}};
// For families with experts in all layers.
inline const ConfigRow expert_width[] = {{"intermediate_size", "moe.d_ff"}};
// The norm that model.norm has by default.
inline const ConfigRow rms_norm[] = {{"rms_norm_eps", "model.norm_eps", {}, "1e-6"}};
inline const ConfigRow rms_norm_1e5[] = {{"rms_norm_eps", "model.norm_eps", {}, "1e-5"}};
inline const ConfigRow layer_norm[] = {
    {"", "model.norm", {{"", "layernorm"}}},
    {"", "model.norm_bias", {{"", "true"}}},
};
inline const ConfigRow swiglu[] = {{"hidden_act", "model.ffn", {{"\"silu\"", "swiglu"}}, "\"silu\""}};
inline const ConfigRow untied[] = {{"tie_word_embeddings", "model.tie_embeddings", {}, "false"}};
inline const ConfigRow tied[] = {{"tie_word_embeddings", "model.tie_embeddings", {}, "true"}};
inline const ConfigRow no_bias[] = {{"attention_bias", "", {{"false", ""}}, "false"}};
// Names of activations in the files. Several names may mean the same function.
inline const std::vector<std::pair<std::string_view, std::string_view>> activations = {
    {"\"gelu_new\"", "gelu_tanh"},  {"\"gelu_pytorch_tanh\"", "gelu_tanh"},
    {"\"gelu_fast\"", "gelu_tanh"}, {"\"gelu\"", "gelu"},
    {"\"relu\"", "relu"},           {"\"relu2\"", "relu2"},
    {"\"silu\"", "silu"},
};
inline const ConfigRow attention_bias[] = {
    {"attention_bias", "model.bias", {{"false", "none"}, {"true", "attention"}}, "false"}};
// For families whose output of attention has no bias.
inline const ConfigRow attention_qkv_bias[] = {
    {"attention_bias", "model.bias", {{"false", "none"}, {"true", "qkv"}}, "false"}};
inline const ConfigRow use_bias[] = {{"use_bias", "model.bias", {{"false", "none"}, {"true", "all"}}, "false"}};
inline const ConfigRow qkv_bias[] = {{"", "model.bias", {{"", "qkv"}}}};
inline const ConfigRow head_norms[] = {{"", "model.qk_norm", {{"", "head"}}}};
inline const ConfigRow norms_after_rope[] = {{"", "model.qk_norm_after_rope", {{"", "true"}}}};
inline const ConfigRow whole_norms[] = {{"", "model.qk_norm", {{"", "whole"}}}};
inline const ConfigRow both_norm_position[] = {{"", "model.norm_position", {{"", "both"}}}};
inline const ConfigRow interleaved[] = {{"", "model.rope_pairs", {{"", "interleaved"}}}};
inline const ConfigRow half_rotation[] = {{"partial_rotary_factor", "model.rope_fraction", {}, "0.5"}};
inline const ConfigRow relu2[] = {{"hidden_act", "model.ffn", {{"\"relu2\"", "relu2"}}, "\"relu2\""}};
// Defaults of rope_theta. The rules of rotary positions replace them.
inline const ConfigRow theta_1e5[] = {{"", "model.rope_theta", {{"", "100000"}}}};
inline const ConfigRow theta_5e5[] = {{"", "model.rope_theta", {{"", "500000"}}}};
inline const ConfigRow theta_1e6[] = {{"", "model.rope_theta", {{"", "1000000"}}}};
inline const ConfigRow theta_2e6[] = {{"", "model.rope_theta", {{"", "2000000"}}}};
inline const ConfigRow theta_5e6[] = {{"", "model.rope_theta", {{"", "5000000"}}}};
inline const ConfigRow output_norm_position[] = {{"", "model.norm_position", {{"", "output"}}}};
inline const ConfigRow clip_qkv[] = {{"clip_qkv", "model.clip_qkv", {}, "0", true}};

inline const ConfigRow gpt2_keys[] = {
    {"vocab_size", "model.vocab"},
    {"n_embd", "model.d_model"},
    {"n_layer", "model.layers"},
    {"n_head", "model.heads"},
    {"n_positions", "model.seq_len"},
    {"layer_norm_epsilon", "model.norm_eps", {}, "1e-5"},
    {"activation_function", "model.ffn", activations, "\"gelu_new\""},
};
inline const ConfigRow gpt2_only[] = {
    {"", "model.position", {{"", "learned"}}},
    {"", "model.bias", {{"", "all"}}},
    {"scale_attn_weights", "", {{"true", ""}}, "true"},
    {"scale_attn_by_inverse_layer_idx", "", {{"false", ""}}, "false"},
};
inline const ConfigRow gptj_only[] = {
    {"", "model.bias", {{"", "mlp"}}},
    {"", "model.parallel_block", {{"", "true"}}},
    {"", "model.rope_pairs", {{"", "interleaved"}}},
    {"", "model.output_bias", {{"", "true"}}},
};
inline const ConfigRow neox_keys[] = {
    {"layer_norm_eps", "model.norm_eps", {}, "1e-5"},
    {"hidden_act", "model.ffn", activations, "\"gelu\""},
    {"use_parallel_residual", "model.parallel_block", {}, "true"},
    {"", "model.parallel_norms", {{"", "2"}}},
    {"rotary_pct", "model.rope_fraction", {}, "0.25"},
    {"rotary_emb_base", "model.rope_theta", {}, ""},
    {"attention_bias", "model.bias", {{"true", "all"}, {"false", "mlp"}}, "true"},
};
inline const ConfigRow bloom_keys[] = {
    {"vocab_size", "model.vocab"},
    {"hidden_size", "model.d_model"},
    {"n_layer", "model.layers"},
    {"n_head", "model.heads"},
    {"layer_norm_epsilon", "model.norm_eps", {}, "1e-5"},
    {"", "model.position", {{"", "alibi"}}},
    {"", "model.ffn", {{"", "gelu_tanh"}}},
    {"", "model.bias", {{"", "all"}}},
    {"", "model.embedding_norm", {{"", "true"}}},
    {"apply_residual_connection_post_layernorm",
     "model.norm_position",
     {{"false", "pre"}, {"true", "residual"}},
     "false"},
    {"slow_but_exact", "", {{"false", ""}}, "false"},
    {"seq_length", "model.seq_len", {}, "2048"},
};
inline const ConfigRow opt_keys[] = {
    {"ffn_dim", "model.d_ff"},
    {"activation_function", "model.ffn", activations, "\"relu\""},
    {"", "model.position", {{"", "learned"}}},
    {"enable_bias", "model.bias", {{"true", "all"}, {"false", "none"}}, "true"},
    {"do_layer_norm_before", "model.norm_position", {{"true", "pre"}, {"false", "post"}}, "true"},
    {"layer_norm_elementwise_affine", "", {{"true", ""}}, "true"},
    {"_remove_final_layer_norm", "", {{"false", ""}}, "false"},
};
inline const ConfigRow falcon_keys[] = {
    {"max_position_embeddings", "model.seq_len", {}, "2048"},
    {"layer_norm_epsilon", "model.norm_eps", {}, "1e-5"},
    {"activation", "model.ffn", activations, "\"gelu\""},
    {"bias", "model.bias", {{"false", "none"}, {"true", "all"}}, "false"},
    {"alibi", "model.position", {{"false", "rope"}, {"true", "alibi"}}, "false"},
};
// The first Gemma's files have the name of the exact GELU, and mean its approximation.
inline const ConfigRow gemma1_ffn[] = {
    {"hidden_act",
     "model.ffn",
     {{"\"gelu_pytorch_tanh\"", "geglu_tanh"}, {"\"gelu\"", "geglu_tanh"}},
     "\"gelu_pytorch_tanh\""},
    {"hidden_activation", "", {{"null", ""}, {"\"gelu_pytorch_tanh\"", ""}}, "null"},
};
inline const ConfigRow gemma_ffn[] = {
    {"hidden_activation", "model.ffn", {{"\"gelu_pytorch_tanh\"", "geglu_tanh"}}, "\"gelu_pytorch_tanh\""}};
inline const ConfigRow gemma_keys[] = {
    {"", "model.norm_offset", {{"", "true"}}},
    {"", "model.scale_embedding", {{"", "true"}}},
    {"use_bidirectional_attention", "", {{"false", ""}, {"null", ""}}, "false"},
};
inline const ConfigRow gemma2_softcaps[] = {
    {"attn_logit_softcapping", "model.attention_softcap", {}, "50.0", true},
    {"final_logit_softcapping", "model.output_softcap", {}, "30.0", true},
};
// transformers has a key for a cap of gemma3's scores, and does not read it.
inline const ConfigRow gemma3_softcaps[] = {
    {"attn_logit_softcapping", "", {{"null", ""}, {"0", ""}, {"0.0", ""}}, "null"},
    {"final_logit_softcapping", "model.output_softcap", {}, "0", true},
};
inline const ConfigRow olmo_keys[] = {
    {"", "model.norm", {{"", "layernorm"}}},
    {"", "model.norm_bias", {{"", "false"}}},
    {"", "model.norm_eps", {{"", "1e-05"}}},
};
inline const ConfigRow cohere_keys[] = {
    {"", "model.norm", {{"", "layernorm"}}},          {"", "model.norm_bias", {{"", "false"}}},
    {"layer_norm_eps", "model.norm_eps", {}, "1e-5"}, {"", "model.parallel_block", {{"", "true"}}},
    {"", "model.rope_pairs", {{"", "interleaved"}}},  {"logit_scale", "model.logit_scale", {}, "0.0625"},
};
inline const ConfigRow cohere_only[] = {
    {"use_qk_norm", "model.qk_norm", {{"false", "none"}, {"true", "head_layernorm"}}, "false"}};
inline const ConfigRow nemotron_keys[] = {
    {"norm_eps", "model.norm_eps", {}, "1e-5"},
    {"", "model.norm_offset", {{"", "true"}}},
};
inline const ConfigRow rms_norm_1e8[] = {{"rms_norm_eps", "model.norm_eps", {}, "1e-8"}};
inline const ConfigRow starcoder2_keys[] = {
    {"norm_epsilon", "model.norm_eps", {}, "1e-5"},
    {"hidden_act", "model.ffn", activations, "\"gelu_pytorch_tanh\""},
    {"use_bias", "model.bias", {{"true", "all"}, {"false", "none"}}, "true"},
};
inline const ConfigRow stablelm_keys[] = {
    {"layer_norm_eps", "model.norm_eps", {}, "1e-5"},
    {"use_qkv_bias", "model.bias", {{"false", "none"}, {"true", "qkv"}}, "false"},
    {"qk_layernorm", "model.qk_norm", {{"false", "none"}, {"true", "head_layernorm"}}, "false"},
    {"use_parallel_residual", "model.parallel_block", {}, "false"},
    {"partial_rotary_factor", "model.rope_fraction", {}, "0.25"},
};
inline const ConfigRow phi_keys[] = {
    {"layer_norm_eps", "model.norm_eps", {}, "1e-5"},
    {"hidden_act", "model.ffn", activations, "\"gelu_new\""},
    {"", "model.bias", {{"", "all"}}},
    {"", "model.output_bias", {{"", "true"}}},
    {"", "model.parallel_block", {{"", "true"}}},
    {"qk_layernorm", "", {{"false", ""}}, "false"},
};
inline const ConfigRow glm_keys[] = {
    {"rms_norm_eps", "model.norm_eps", {}, "1.5625e-07"},
    {"attention_bias", "model.bias", {{"true", "qkv"}, {"false", "none"}}, "true"},
};
inline const ConfigRow dropless[] = {{"", "moe.capacity_factor", {{"", "0"}}}};
inline const ConfigRow top_k[] = {{"num_experts_per_tok", "moe.top_k"}};
inline const ConfigRow mixtral_keys[] = {
    {"num_local_experts", "moe.experts"},
    {"", "moe.renormalize", {{"", "true"}}},
};
inline const ConfigRow granite_keys[] = {
    {"embedding_multiplier", "model.embedding_scale", {}, "1.0"},
    {"residual_multiplier", "model.residual_scale", {}, "1.0"},
};
// Every token also passes an MLP of the width of an expert.
inline const ConfigRow hunyuan_moe_keys[] = {
    {"", "moe.shared_experts", {{"", "1"}}},
    {"", "moe.renormalize", {{"", "true"}}},
};
inline const ConfigRow apertus_keys[] = {
    {"hidden_act", "model.ffn", {{"\"xielu\"", "xielu"}}, "\"xielu\""},
};
inline const ConfigRow fine_grained_experts[] = {
    {"num_experts|num_local_experts", "moe.experts"},
    {"norm_topk_prob", "moe.renormalize", {}, "false"},
};
inline const ConfigRow moe_width[] = {{"moe_intermediate_size", "moe.d_ff"}};
inline const ConfigRow qwen2_moe_keys[] = {
    {"", "moe.shared_experts", {{"", "1"}}},
    {"shared_expert_intermediate_size", "moe.shared_d_ff"},
    {"", "moe.shared_gate", {{"", "true"}}},
    {"qkv_bias", "model.bias", {{"true", "qkv"}, {"false", "none"}}, "true"},
};
inline const ConfigRow gpt_oss_keys[] = {
    {"attention_bias", "model.bias", {{"true", "all"}, {"false", "none"}}, "true"},
    {"", "model.attention_sinks", {{"", "true"}}},
    {"", "model.ffn", {{"", "swiglu_clamped"}}},
    {"hidden_act", "", {{"\"silu\"", ""}}, "\"silu\""},
    {"swiglu_limit", "model.ffn_clamp", {}, "7.0"},
    {"swiglu_alpha", "model.swish_beta", {}, "1.702"},
    {"", "moe.bias", {{"", "true"}}},
    {"", "moe.router_bias", {{"", "true"}}},
};
// The norms of the latents have their own eps, for which config.json has no key.
inline const ConfigRow deepseek_keys[] = {
    {"num_key_value_heads", "model.kv_heads"},      {"q_lora_rank", "model.q_lora_rank", {}, "1536", true},
    {"kv_lora_rank", "model.kv_lora_rank"},         {"qk_rope_head_dim", "model.qk_rope_head_dim"},
    {"qk_nope_head_dim", "model.head_dim"},         {"v_head_dim", "model.v_head_dim"},
    {"", "model.latent_norm_eps", {{"", "1e-06"}}}, {"n_routed_experts", "moe.experts"},
    {"moe_layer_freq", "", {{"1", ""}}, "1"},
};
inline const ConfigRow deepseek2_keys[] = {
    {"mlp_bias", "", {{"false", ""}}, "false"},
    {"", "model.rope_pairs", {{"", "interleaved"}}},
    {"", "moe.score", {{"", "softmax"}}},
    {"n_shared_experts", "moe.shared_experts", {}, "2"},
    {"first_k_dense_replace", "moe.first_dense", {}, "0"},
    {"routed_scaling_factor", "moe.scale", {}, "1.0"},
    {"n_group", "moe.groups", {}, "1"},
    {"topk_group", "moe.topk_groups", {}, "1"},
    {"norm_topk_prob", "moe.renormalize", {{"false", "false"}}, "false"},
    {"topk_method", "moe.group_score", {{"\"greedy\"", "max"}, {"\"group_limited_greedy\"", "max"}}, "\"greedy\""},
};
inline const ConfigRow sigmoid_scores[] = {
    {"", "moe.score", {{"", "sigmoid"}}},
    {"", "moe.bias_update_rate", {{"", "0.001"}}},
};
// Routers as DeepSeek-V3 has them, without its defaults.
inline const ConfigRow sigmoid_router[] = {
    {"n_routed_experts", "moe.experts"},
    {"routed_scaling_factor", "moe.scale", {}, "1.0"},
    {"n_group", "moe.groups", {}, "1"},
    {"topk_group", "moe.topk_groups", {}, "1"},
};
inline const ConfigRow glm4_moe_keys[] = {
    {"n_shared_experts", "moe.shared_experts", {}, "1"},
    {"first_k_dense_replace", "moe.first_dense", {}, "1"},
    {"norm_topk_prob", "moe.renormalize", {}, "true"},
    {"use_qk_norm", "model.qk_norm", {{"false", "none"}, {"true", "head"}}, "false"},
};
inline const ConfigRow dots1_keys[] = {
    {"n_shared_experts", "moe.shared_experts"},
    {"first_k_dense_replace", "moe.first_dense", {}, "0"},
    {"norm_topk_prob", "moe.renormalize", {}, "false"},
};
inline const ConfigRow ernie_moe_keys[] = {
    {"moe_num_experts", "moe.experts"},
    {"moe_k", "moe.top_k"},
    {"moe_num_shared_experts", "moe.shared_experts", {}, "2"},
    {"moe_norm_min", "", {{"1e-12", ""}}, "1e-12"},
    {"use_bias", "", {{"false", ""}}, "false"},
    {"", "moe.score", {{"", "softmax"}}},
    {"", "moe.bias_update_rate", {{"", "0.001"}}},
    {"", "moe.renormalize", {{"", "true"}}},
};
inline const ConfigRow rope_interleave[] = {
    {"rope_interleave", "model.rope_pairs", {{"true", "interleaved"}, {"false", "half"}}, "true"},
};
inline const ConfigRow deepseek3_keys[] = {
    {"n_shared_experts", "moe.shared_experts", {}, "1"}, {"first_k_dense_replace", "moe.first_dense", {}, "3"},
    {"routed_scaling_factor", "moe.scale", {}, "2.5"},   {"n_group", "moe.groups", {}, "8"},
    {"topk_group", "moe.topk_groups", {}, "4"},          {"norm_topk_prob", "moe.renormalize", {}, "true"},
};
// Sparse attention of DeepSeek-V3.2, which has no rope_interleave.
inline const ConfigRow deepseek32_keys[] = {
    {"", "model.rope_pairs", {{"", "interleaved"}}},    {"", "model.attention", {{"", "indexed"}}},
    {"index_n_heads", "model.index_n_heads", {}, "64"}, {"index_head_dim", "model.index_head_dim", {}, "128"},
    {"index_topk", "model.index_topk", {}, "2048"},     {"mlp_bias", "", {{"false", ""}}, "false"},
};

}  // namespace sy::tables
