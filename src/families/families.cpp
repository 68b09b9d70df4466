#include <fmt/format.h>

#include <string>

#include "src/families/parts.h"
#include "src/text/words.h"

namespace sy {
namespace {

// ---- tensors that many families share ----

// The embedding, the last norm and the output.
constexpr TensorRow llama_model[] = {
    {"embed_tokens.weight", "embedding.weight", "V D -> V D"},
    {"norm.weight", "final_norm.weight", "D -> D"},
    {"norm.bias", "final_norm.bias", "D -> D"},
    {"/lm_head.weight", "output.weight", "V D -> V D"},
};
constexpr TensorRow llama_attention[] = {
    {"self_attn.q_proj.weight", "attention.q.weight", "H i D -> (H i) D"},
    {"self_attn.k_proj.weight", "attention.k.weight", "K i D -> (K i) D"},
    {"self_attn.v_proj.weight", "attention.v.weight", "K i D -> (K i) D"},
    {"self_attn.o_proj.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"self_attn.q_proj.bias", "attention.q.bias", "H i -> (H i)"},
    {"self_attn.k_proj.bias", "attention.k.bias", "K i -> (K i)"},
    {"self_attn.v_proj.bias", "attention.v.bias", "K i -> (K i)"},
    {"self_attn.o_proj.bias", "attention.out.bias", "D -> D"},
};
constexpr TensorRow pre_norms[] = {
    {"input_layernorm.weight", "attention_norm.weight", "D -> D"},
    {"input_layernorm.bias", "attention_norm.bias", "D -> D"},
    {"post_attention_layernorm.weight", "ffn_norm.weight", "D -> D"},
    {"post_attention_layernorm.bias", "ffn_norm.bias", "D -> D"},
};
// Of each sublayer's input and output.
constexpr TensorRow gemma_norms[] = {
    {"input_layernorm.weight", "attention_norm.weight", "D -> D"},
    {"post_attention_layernorm.weight", "attention_out_norm.weight", "D -> D"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight", "D -> D"},
    {"post_feedforward_layernorm.weight", "ffn_out_norm.weight", "D -> D"},
};
constexpr TensorRow output_norms[] = {
    {"post_attention_layernorm.weight", "attention_out_norm.weight", "D -> D"},
    {"post_feedforward_layernorm.weight", "ffn_out_norm.weight", "D -> D"},
};
constexpr TensorRow gated_mlp[] = {
    {"mlp.gate_proj.weight", "mlp.up.weight", "0 F D -> F D"},
    {"mlp.up_proj.weight", "mlp.up.weight", "1 F D -> F D"},
    {"mlp.down_proj.weight", "mlp.down.weight", "D F -> D F"},
};
constexpr TensorRow head_qk_norm[] = {
    {"self_attn.q_norm.weight", "attention.q_norm.weight", "i -> i"},
    {"self_attn.k_norm.weight", "attention.k_norm.weight", "i -> i"},
};
constexpr TensorRow whole_qk_norm[] = {
    {"self_attn.q_norm.weight", "attention.q_norm.weight", "H i -> (H i)"},
    {"self_attn.k_norm.weight", "attention.k_norm.weight", "K i -> (K i)"},
};
constexpr TensorRow heads_qk_norm[] = {
    {"self_attn.q_norm.weight", "attention.q_norm.weight", "H i -> H i"},
    {"self_attn.k_norm.weight", "attention.k_norm.weight", "K i -> K i"},
};
constexpr TensorRow experts[] = {
    {"mlp.gate.weight", "moe.router.weight", "E D -> E D"},
    {"mlp.experts.{}.gate_proj.weight", "moe.experts.up.weight", "e 0 F D -> F D"},
    {"mlp.experts.{}.up_proj.weight", "moe.experts.up.weight", "e 1 F D -> F D"},
    {"mlp.experts.{}.down_proj.weight", "moe.experts.down.weight", "e D F -> D F"},
};

// ---- and those that only some have ----

constexpr TensorRow gpt2_model[] = {
    {"wte.weight", "embedding.weight", "V D -> V D"},   {"wpe.weight", "position.weight", "P D -> P D"},
    {"ln_f.weight", "final_norm.weight", "D -> D"},     {"ln_f.bias", "final_norm.bias", "D -> D"},
    {"/lm_head.weight", "output.weight", "V D -> V D"}, {"/lm_head.bias", "output.bias", "V -> V"},
};
// Its linear layers are stored with their input first.
constexpr TensorRow gpt2_layer[] = {
    {"ln_1.weight", "attention_norm.weight", "D -> D"},
    {"ln_1.bias", "attention_norm.bias", "D -> D"},
    {"attn.c_attn.weight", "attention.q.weight", "H i D -> D (+H i)"},
    {"attn.c_attn.weight", "attention.k.weight", "K i D -> D (+K i)"},
    {"attn.c_attn.weight", "attention.v.weight", "K i D -> D (+K i)"},
    {"attn.c_attn.bias", "attention.q.bias", "H i -> (+H i)"},
    {"attn.c_attn.bias", "attention.k.bias", "K i -> (+K i)"},
    {"attn.c_attn.bias", "attention.v.bias", "K i -> (+K i)"},
    {"attn.c_proj.weight", "attention.out.weight", "D H i -> (H i) D"},
    {"attn.c_proj.bias", "attention.out.bias", "D -> D"},
    {"ln_2.weight", "ffn_norm.weight", "D -> D"},
    {"ln_2.bias", "ffn_norm.bias", "D -> D"},
    {"mlp.c_fc.weight", "mlp.up.weight", "0 F D -> D F"},
    {"mlp.c_fc.bias", "mlp.up.bias", "0 F -> F"},
    {"mlp.c_proj.weight", "mlp.down.weight", "D F -> F D"},
    {"mlp.c_proj.bias", "mlp.down.bias", "D -> D"},
};
constexpr TensorRow gptj_layer[] = {
    {"ln_1.weight", "attention_norm.weight", "D -> D"},
    {"ln_1.bias", "attention_norm.bias", "D -> D"},
    {"attn.q_proj.weight", "attention.q.weight", "H i D -> (H i) D"},
    {"attn.k_proj.weight", "attention.k.weight", "K i D -> (K i) D"},
    {"attn.v_proj.weight", "attention.v.weight", "K i D -> (K i) D"},
    {"attn.out_proj.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"mlp.fc_in.weight", "mlp.up.weight", "0 F D -> F D"},
    {"mlp.fc_in.bias", "mlp.up.bias", "0 F -> F"},
    {"mlp.fc_out.weight", "mlp.down.weight", "D F -> D F"},
    {"mlp.fc_out.bias", "mlp.down.bias", "D -> D"},
};
constexpr TensorRow neox_model[] = {
    {"embed_in.weight", "embedding.weight", "V D -> V D"},
    {"final_layer_norm.weight", "final_norm.weight", "D -> D"},
    {"final_layer_norm.bias", "final_norm.bias", "D -> D"},
    {"/embed_out.weight", "output.weight", "V D -> V D"},
};
constexpr TensorRow neox_layer[] = {
    {"attention.query_key_value.weight", "attention.q.weight", "H i D -> (H +1 i) D"},
    {"attention.query_key_value.weight", "attention.k.weight", "H i D -> (H +1 i) D"},
    {"attention.query_key_value.weight", "attention.v.weight", "H i D -> (H +1 i) D"},
    {"attention.query_key_value.bias", "attention.q.bias", "H i -> (H +1 i)"},
    {"attention.query_key_value.bias", "attention.k.bias", "H i -> (H +1 i)"},
    {"attention.query_key_value.bias", "attention.v.bias", "H i -> (H +1 i)"},
    {"attention.dense.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"attention.dense.bias", "attention.out.bias", "D -> D"},
};
constexpr TensorRow bloom_model[] = {
    {"word_embeddings.weight", "embedding.weight", "V D -> V D"},
    {"word_embeddings_layernorm.weight", "embedding_norm.weight", "D -> D"},
    {"word_embeddings_layernorm.bias", "embedding_norm.bias", "D -> D"},
    {"ln_f.weight", "final_norm.weight", "D -> D"},
    {"ln_f.bias", "final_norm.bias", "D -> D"},
    {"/lm_head.weight", "output.weight", "V D -> V D"},
};
// Each kv head's queries are followed by its key and its value.
constexpr TensorRow bloom_attention[] = {
    {"self_attention.query_key_value.weight", "attention.q.weight", "(K g) i D -> (K +g i) D"},
    {"self_attention.query_key_value.weight", "attention.k.weight", "K i D -> (K +1 i) D"},
    {"self_attention.query_key_value.weight", "attention.v.weight", "K i D -> (K +1 i) D"},
    {"self_attention.query_key_value.bias", "attention.q.bias", "(K g) i -> (K +g i)"},
    {"self_attention.query_key_value.bias", "attention.k.bias", "K i -> (K +1 i)"},
    {"self_attention.query_key_value.bias", "attention.v.bias", "K i -> (K +1 i)"},
    {"self_attention.dense.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"self_attention.dense.bias", "attention.out.bias", "D -> D"},
};
constexpr TensorRow four_h_mlp[] = {
    {"mlp.dense_h_to_4h.weight", "mlp.up.weight", "0 F D -> F D"},
    {"mlp.dense_h_to_4h.bias", "mlp.up.bias", "0 F -> F"},
    {"mlp.dense_4h_to_h.weight", "mlp.down.weight", "D F -> D F"},
    {"mlp.dense_4h_to_h.bias", "mlp.down.bias", "D -> D"},
};
constexpr TensorRow falcon_norms[] = {
    {"input_layernorm.weight", "attention_norm.weight", "D -> D", "!ffn_norm.weight"},
    {"input_layernorm.bias", "attention_norm.bias", "D -> D", "!ffn_norm.weight"},
    {"ln_attn.weight", "attention_norm.weight", "D -> D", "ffn_norm.weight"},
    {"ln_attn.bias", "attention_norm.bias", "D -> D", "ffn_norm.weight"},
    {"ln_mlp.weight", "ffn_norm.weight", "D -> D"},
    {"ln_mlp.bias", "ffn_norm.bias", "D -> D"},
};
// The first two rows of its positions are of tokens that are left out.
constexpr TensorRow opt_model[] = {
    {"embed_tokens.weight", "embedding.weight", "V D -> V D"},
    {"embed_positions.weight", "", "-> +2 D"},
    {"embed_positions.weight", "position.weight", "P D -> +P D"},
    {"final_layer_norm.weight", "final_norm.weight", "D -> D"},
    {"final_layer_norm.bias", "final_norm.bias", "D -> D"},
    {"/lm_head.weight", "output.weight", "V D -> V D"},
};
constexpr TensorRow opt_layer[] = {
    {"self_attn.out_proj.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"self_attn.out_proj.bias", "attention.out.bias", "D -> D"},
    {"self_attn_layer_norm.weight", "attention_norm.weight", "D -> D"},
    {"self_attn_layer_norm.bias", "attention_norm.bias", "D -> D"},
    {"fc1.weight", "mlp.up.weight", "0 F D -> F D"},
    {"fc1.bias", "mlp.up.bias", "0 F -> F"},
    {"fc2.weight", "mlp.down.weight", "D F -> D F"},
    {"fc2.bias", "mlp.down.bias", "D -> D"},
    {"final_layer_norm.weight", "ffn_norm.weight", "D -> D"},
    {"final_layer_norm.bias", "ffn_norm.bias", "D -> D"},
};
constexpr TensorRow opt_qkv[] = {
    {"self_attn.q_proj.weight", "attention.q.weight", "H i D -> (H i) D"},
    {"self_attn.k_proj.weight", "attention.k.weight", "K i D -> (K i) D"},
    {"self_attn.v_proj.weight", "attention.v.weight", "K i D -> (K i) D"},
    {"self_attn.q_proj.bias", "attention.q.bias", "H i -> (H i)"},
    {"self_attn.k_proj.bias", "attention.k.bias", "K i -> (K i)"},
    {"self_attn.v_proj.bias", "attention.v.bias", "K i -> (K i)"},
};
constexpr TensorRow phi3_layer[] = {
    {"self_attn.qkv_proj.weight", "attention.q.weight", "H i D -> (+H i) D"},
    {"self_attn.qkv_proj.weight", "attention.k.weight", "K i D -> (+K i) D"},
    {"self_attn.qkv_proj.weight", "attention.v.weight", "K i D -> (+K i) D"},
    {"self_attn.o_proj.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"mlp.gate_up_proj.weight", "mlp.up.weight", "h F D -> (h F) D"},
    {"mlp.down_proj.weight", "mlp.down.weight", "D F -> D F"},
};
// Norms without weights.
constexpr TensorRow olmo_model[] = {
    {"embed_tokens.weight", "embedding.weight", "V D -> V D"},
    {"", "final_norm.weight", ""},
    {"/lm_head.weight", "output.weight", "V D -> V D"},
};
constexpr TensorRow olmo_norms[] = {
    {"", "attention_norm.weight", ""},
    {"", "ffn_norm.weight", ""},
};
constexpr TensorRow plain_mlp[] = {
    {"mlp.up_proj.weight", "mlp.up.weight", "0 F D -> F D"},
    {"mlp.down_proj.weight", "mlp.down.weight", "D F -> D F"},
};
constexpr TensorRow mixtral_moe[] = {
    {"block_sparse_moe.gate.weight", "moe.router.weight", "E D -> E D"},
    {"block_sparse_moe.experts.{}.w1.weight", "moe.experts.up.weight", "e 0 F D -> F D"},
    {"block_sparse_moe.experts.{}.w3.weight", "moe.experts.up.weight", "e 1 F D -> F D"},
    {"block_sparse_moe.experts.{}.w2.weight", "moe.experts.down.weight", "e D F -> D F"},
};
constexpr TensorRow qwen2_shared[] = {
    {"mlp.shared_expert.gate_proj.weight", "moe.shared.up.weight", "0 F D -> F D"},
    {"mlp.shared_expert.up_proj.weight", "moe.shared.up.weight", "1 F D -> F D"},
    {"mlp.shared_expert.down_proj.weight", "moe.shared.down.weight", "D F -> D F"},
    {"mlp.shared_expert_gate.weight", "moe.shared_gate.weight", "0 D -> 1 D"},
};
// Gate and linear half of a unit lie side by side.
constexpr TensorRow gpt_oss_moe[] = {
    {"self_attn.sinks", "attention.sinks", "H -> H"},
    {"mlp.router.weight", "moe.router.weight", "E D -> E D"},
    {"mlp.router.bias", "moe.router.bias", "E -> E"},
    {"mlp.experts.gate_up_proj", "moe.experts.up.weight", "E h F D -> E D (F h)"},
    {"mlp.experts.gate_up_proj_bias", "moe.experts.up.bias", "E h F -> E (F h)"},
    {"mlp.experts.down_proj", "moe.experts.down.weight", "E D F -> E F D"},
    {"mlp.experts.down_proj_bias", "moe.experts.down.bias", "E D -> E D"},
};

// A query and a key end with what is rotated, which lies first in ours.
constexpr TensorRow latent_attention[] = {
    {"self_attn.q_a_proj.weight", "attention.q_down.weight", "L D -> L D"},
    {"self_attn.q_a_layernorm.weight", "attention.q_latent_norm.weight", "L -> L"},
    {"self_attn.q_b_proj.weight", "attention.q.weight", "H r:n L -> (H +n) L", "attention.q_down.weight"},
    {"self_attn.q_b_proj.weight", "attention.q.weight", "H 0:r L -> (H +r) L", "attention.q_down.weight"},
    {"self_attn.q_proj.weight", "attention.q.weight", "H r:n L -> (H +n) L", "!attention.q_down.weight"},
    {"self_attn.q_proj.weight", "attention.q.weight", "H 0:r L -> (H +r) L", "!attention.q_down.weight"},
    {"self_attn.kv_a_proj_with_mqa.weight", "attention.kv_down.weight", "L D -> +L D"},
    {"self_attn.kv_a_proj_with_mqa.weight", "attention.k_rope.weight", "r D -> +r D"},
    {"self_attn.kv_a_layernorm.weight", "attention.kv_latent_norm.weight", "L -> L"},
    {"self_attn.kv_b_proj.weight", "attention.k.weight", "H n L -> (H +n) L"},
    {"self_attn.kv_b_proj.weight", "attention.v.weight", "H v L -> (H +v) L"},
    {"self_attn.o_proj.weight", "attention.out.weight", "D H v -> D (H v)"},
};
constexpr TensorRow deepseek_moe[] = {
    {"mlp.gate.e_score_correction_bias", "moe.selection_bias", "E -> E"},
    {"mlp.shared_experts.gate_proj.weight", "moe.shared.up.weight", "0 F D -> F D"},
    {"mlp.shared_experts.up_proj.weight", "moe.shared.up.weight", "1 F D -> F D"},
    {"mlp.shared_experts.down_proj.weight", "moe.shared.down.weight", "D F -> D F"},
};

// ---- keys of config.json ----

const ConfigRow sizes[] = {
    {"vocab_size", "model.vocab"},
    {"hidden_size", "model.d_model"},
    {"num_hidden_layers", "model.layers"},
    {"num_attention_heads", "model.heads"},
    {"max_position_embeddings", "model.seq_len"},
};
const ConfigRow grouped[] = {
    {"num_key_value_heads", "model.kv_heads", {}, ""},
    {"head_dim", "model.head_dim", {}, ""},
};
const ConfigRow dense_width[] = {{"intermediate_size", "model.d_ff"}};
const ConfigRow expert_width[] = {{"intermediate_size", "moe.d_ff"}};  // of families whose layers all have experts
const ConfigRow rms_norm[] = {
    {"", "model.norm", {{"", "rmsnorm"}}},
    {"rms_norm_eps", "model.norm_eps", {}, "1e-6"},
};
const ConfigRow layer_norm[] = {
    {"", "model.norm", {{"", "layernorm"}}},
    {"", "model.norm_bias", {{"", "true"}}},
};
const ConfigRow swiglu[] = {{"hidden_act", "model.ffn", {{"\"silu\"", "swiglu"}}, "\"silu\""}};
const ConfigRow untied[] = {{"tie_word_embeddings", "model.tie_embeddings", {}, "false"}};
const ConfigRow tied[] = {{"tie_word_embeddings", "model.tie_embeddings", {}, "true"}};
const ConfigRow no_bias[] = {{"attention_bias", "", {{"false", ""}}, "false"}};
// The names of one function that the files use, and those that some have besides.
const std::vector<std::pair<std::string_view, std::string_view>> activations = {
    {"\"gelu_new\"", "gelu_tanh"},  {"\"gelu_pytorch_tanh\"", "gelu_tanh"},
    {"\"gelu_fast\"", "gelu_tanh"}, {"\"gelu\"", "gelu"},
    {"\"relu\"", "relu"},           {"\"relu2\"", "relu2"},
    {"\"silu\"", "silu"},
};
const ConfigRow llama_keys[] = {{"mlp_bias", "", {{"false", ""}}, "false"}};
const ConfigRow qkv_bias[] = {{"", "model.bias", {{"", "qkv"}}}};
const ConfigRow head_norms[] = {{"", "model.qk_norm", {{"", "head"}}}};
const ConfigRow whole_norms[] = {{"", "model.qk_norm", {{"", "whole"}}}};
const ConfigRow output_placed[] = {{"", "model.norm_position", {{"", "output"}}}};
const ConfigRow unclipped[] = {{"clip_qkv", "", {{"null", ""}}, "null"}};

const ConfigRow gpt2_keys[] = {
    {"vocab_size", "model.vocab"},
    {"n_embd", "model.d_model"},
    {"n_layer", "model.layers"},
    {"n_head", "model.heads"},
    {"n_positions", "model.seq_len"},
    {"layer_norm_epsilon", "model.norm_eps", {}, "1e-5"},
    {"activation_function", "model.ffn", activations, "\"gelu_new\""},
};
const ConfigRow gpt2_only[] = {
    {"", "model.position", {{"", "learned"}}},
    {"", "model.bias", {{"", "all"}}},
    {"scale_attn_weights", "", {{"true", ""}}, "true"},
    {"scale_attn_by_inverse_layer_idx", "", {{"false", ""}}, "false"},
};
const ConfigRow gptj_only[] = {
    {"", "model.bias", {{"", "mlp"}}},
    {"", "model.parallel_block", {{"", "true"}}},
    {"", "model.rope_pairs", {{"", "interleaved"}}},
    {"", "model.output_bias", {{"", "true"}}},
};
const ConfigRow neox_keys[] = {
    {"layer_norm_eps", "model.norm_eps", {}, "1e-5"},
    {"hidden_act", "model.ffn", activations, "\"gelu\""},
    {"use_parallel_residual", "model.parallel_block", {}, "true"},
    {"", "model.parallel_norms", {{"", "2"}}},
    {"rotary_pct", "model.rope_fraction", {}, ""},
    {"rotary_emb_base", "model.rope_theta", {}, ""},
    {"attention_bias", "model.bias", {{"true", "all"}}, "true"},
};
const ConfigRow bloom_keys[] = {
    {"vocab_size", "model.vocab"},
    {"hidden_size", "model.d_model"},
    {"n_layer", "model.layers"},
    {"n_head", "model.heads"},
    {"layer_norm_epsilon", "model.norm_eps", {}, "1e-5"},
    {"", "model.position", {{"", "alibi"}}},
    {"", "model.ffn", {{"", "gelu_tanh"}}},
    {"", "model.bias", {{"", "all"}}},
    {"", "model.embedding_norm", {{"", "true"}}},
    {"apply_residual_connection_post_layernorm", "", {{"false", ""}}, "false"},
    {"slow_but_exact", "", {{"false", ""}}, "false"},
    {"seq_length", "model.seq_len", {}, "2048"},
};
const ConfigRow opt_keys[] = {
    {"ffn_dim", "model.d_ff"},
    {"activation_function", "model.ffn", activations, "\"relu\""},
    {"", "model.position", {{"", "learned"}}},
    {"enable_bias", "model.bias", {{"true", "all"}}, "true"},
    {"do_layer_norm_before", "", {{"true", ""}}, "true"},
    {"layer_norm_elementwise_affine", "", {{"true", ""}}, "true"},
    {"_remove_final_layer_norm", "", {{"false", ""}}, "false"},
};
const ConfigRow falcon_keys[] = {
    {"vocab_size", "model.vocab"},
    {"hidden_size", "model.d_model"},
    {"num_hidden_layers", "model.layers"},
    {"num_attention_heads", "model.heads"},
    {"max_position_embeddings", "model.seq_len", {}, "2048"},
    {"layer_norm_epsilon", "model.norm_eps", {}, "1e-5"},
    {"activation", "model.ffn", activations, "\"gelu\""},
    {"bias", "model.bias", {{"false", "none"}, {"true", "all"}}, "false"},
    {"alibi", "", {{"false", ""}}, "false"},
    {"", "model.parallel_block", {{"", "true"}}},
};
const ConfigRow gemma_keys[] = {
    {"hidden_activation", "model.ffn", {{"\"gelu_pytorch_tanh\"", "geglu_tanh"}}, "\"gelu_pytorch_tanh\""},
    {"", "model.norm_position", {{"", "both"}}},
    {"", "model.norm_offset", {{"", "true"}}},
    {"", "model.scale_embedding", {{"", "true"}}},
    {"attn_logit_softcapping", "model.attention_softcap", {}, "0"},
    {"final_logit_softcapping", "model.output_softcap", {}, "0"},
    {"use_bidirectional_attention", "", {{"false", ""}, {"null", ""}}, "false"},
};
const ConfigRow olmo_keys[] = {
    {"", "model.norm", {{"", "layernorm"}}},
    {"", "model.norm_bias", {{"", "false"}}},
    {"", "model.norm_eps", {{"", "1e-05"}}},
};
const ConfigRow phi3_keys[] = {
    {"attention_bias", "", {{"false", ""}}, "false"},
};
const ConfigRow cohere_keys[] = {
    {"", "model.norm", {{"", "layernorm"}}},          {"", "model.norm_bias", {{"", "false"}}},
    {"layer_norm_eps", "model.norm_eps", {}, "1e-5"}, {"", "model.parallel_block", {{"", "true"}}},
    {"", "model.rope_pairs", {{"", "interleaved"}}},  {"logit_scale", "model.logit_scale", {}, "0.0625"},
};
const ConfigRow cohere_only[] = {
    {"use_qk_norm", "model.qk_norm", {{"false", "none"}, {"true", "head_layernorm"}}, "false"}};
const ConfigRow nemotron_keys[] = {
    {"norm_eps", "model.norm_eps", {}, "1e-5"},
    {"", "model.norm_offset", {{"", "true"}}},
    {"hidden_act", "model.ffn", {{"\"relu2\"", "relu2"}}, "\"relu2\""},
    {"mlp_bias", "", {{"false", ""}}, "false"},
};
const ConfigRow dropless[] = {{"", "moe.capacity_factor", {{"", "0"}}}};
const ConfigRow top_k[] = {{"num_experts_per_tok", "moe.top_k"}};
const ConfigRow mixtral_keys[] = {
    {"num_local_experts", "moe.experts"},
    {"", "moe.renormalize", {{"", "true"}}},
};
const ConfigRow fine_experts[] = {
    {"num_experts|num_local_experts", "moe.experts"},
    {"norm_topk_prob", "moe.renormalize", {}, "false"},
};
const ConfigRow own_width[] = {{"moe_intermediate_size", "moe.d_ff"}};
const ConfigRow qwen2_moe_keys[] = {
    {"", "moe.shared_experts", {{"", "1"}}},
    {"shared_expert_intermediate_size", "moe.shared_d_ff"},
    {"", "moe.shared_gate", {{"", "true"}}},
    {"qkv_bias", "model.bias", {{"true", "qkv"}, {"false", "none"}}, "true"},
};
const ConfigRow gpt_oss_keys[] = {
    {"attention_bias", "model.bias", {{"true", "all"}}, "true"},
    {"", "model.attention_sinks", {{"", "true"}}},
    {"", "model.ffn", {{"", "swiglu_clamped"}}},
    {"swiglu_limit", "model.ffn_clamp", {}, "7.0"},
    {"swiglu_alpha", "model.swish_beta", {}, "1.702"},
    {"", "moe.bias", {{"", "true"}}},
    {"", "moe.router_bias", {{"", "true"}}},
};
// The norms of the latents have an eps of their own, which no key says.
const ConfigRow deepseek_keys[] = {
    {"num_key_value_heads", "model.kv_heads"},
    {"q_lora_rank", "model.q_latent", {}, "0"},
    {"kv_lora_rank", "model.kv_latent"},
    {"qk_rope_head_dim", "model.rope_head_dim"},
    {"qk_nope_head_dim", "model.head_dim"},
    {"v_head_dim", "model.value_head_dim"},
    {"", "model.latent_eps", {{"", "1e-06"}}},
    {"n_routed_experts", "moe.experts"},
    {"n_shared_experts", "moe.shared_experts", {}, "0"},
    {"first_k_dense_replace", "moe.first_dense", {}, "0"},
    {"moe_layer_freq", "", {{"1", ""}}, "1"},
    {"routed_scaling_factor", "moe.scale", {}, "1.0"},
    {"n_group", "moe.groups", {}, "1"},
    {"topk_group", "moe.group_limit", {}, "1"},
};
const ConfigRow deepseek2_keys[] = {
    {"", "model.rope_pairs", {{"", "interleaved"}}},
    {"", "moe.score", {{"", "softmax"}}},
    {"norm_topk_prob", "moe.renormalize", {{"false", "false"}}, "false"},
    {"topk_method", "moe.group_score", {{"\"group_limited_greedy\"", "max"}, {"\"greedy\"", "max"}}, "\"greedy\""},
};
const ConfigRow deepseek3_keys[] = {
    {"rope_interleave", "model.rope_pairs", {{"true", "interleaved"}, {"false", "half"}}, "true"},
    {"", "moe.score", {{"", "sigmoid"}}},
    {"", "moe.bias_rate", {{"", "0.001"}}},
    {"norm_topk_prob", "moe.renormalize", {}, "true"},
};

std::string known_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.emplace_back(family.name);
  return join(names, ", ");
}

}  // namespace

const std::vector<Family>& families() {
  constexpr std::string_view frequencies = "rotary_emb.inv_freq";
  static const std::vector<Family> table = {
      {"gpt2",
       "GPT2LMHeadModel",
       "transformer.",
       "h.{}.",
       {gpt2_model},
       {gpt2_layer},
       {gpt2_keys, gpt2_only, layer_norm, tied},
       {&gpt2_width_part},
       {".attn.bias", ".attn.masked_bias"}},
      {"gptj",
       "GPTJForCausalLM",
       "transformer.",
       "h.{}.",
       {gpt2_model},
       {gptj_layer},
       {gpt2_keys, gptj_only, layer_norm, untied},
       {&gpt2_width_part, &rotary_dim_part},
       {".attn.bias", ".attn.masked_bias"}},
      {"gpt_neox",
       "GPTNeoXForCausalLM",
       "gpt_neox.",
       "layers.{}.",
       {neox_model},
       {neox_layer, pre_norms, four_h_mlp},
       {sizes, dense_width, layer_norm, neox_keys, untied},
       {&rope_part},
       {".attention.bias", ".attention.masked_bias", frequencies}},
      {"bloom",
       "BloomForCausalLM",
       "transformer.",
       "h.{}.",
       {bloom_model},
       {bloom_attention, pre_norms, four_h_mlp},
       {bloom_keys, layer_norm, tied},
       {}},
      {"opt",
       "OPTForCausalLM",
       "model.decoder.",
       "layers.{}.",
       {opt_model},
       {opt_qkv, opt_layer},
       {sizes, layer_norm, opt_keys, tied},
       {}},
      {"falcon",
       "FalconForCausalLM",
       "transformer.",
       "h.{}.",
       {bloom_model},
       {bloom_attention, falcon_norms, four_h_mlp},
       {falcon_keys, layer_norm, tied},
       {&falcon_part, &rope_part},
       {frequencies}},
      {"llama",
       "LlamaForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, pre_norms, gated_mlp},
       {sizes, grouped, dense_width, rms_norm, swiglu, untied, no_bias, llama_keys},
       {&rope_part},
       {frequencies}},
      {"mistral",
       "MistralForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, pre_norms, gated_mlp},
       {sizes, grouped, dense_width, rms_norm, swiglu, untied},
       {&rope_part, &window_part},
       {frequencies}},
      {"gemma2",
       "Gemma2ForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, gemma_norms, gated_mlp},
       {sizes, grouped, dense_width, rms_norm, gemma_keys, tied, no_bias},
       {&alternating_part, &rope_part, &attention_scale_part}},
      {"gemma3_text",
       "Gemma3ForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, head_qk_norm, gemma_norms, gated_mlp},
       {sizes, grouped, dense_width, rms_norm, gemma_keys, head_norms, tied, no_bias},
       {&every_sixth_part, &rope_by_kind_part, &attention_scale_part}},
      {"qwen2",
       "Qwen2ForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, pre_norms, gated_mlp},
       {sizes, grouped, dense_width, rms_norm, swiglu, untied, qkv_bias},
       {&rope_part, &qwen_window_part}},
      {"qwen3",
       "Qwen3ForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, head_qk_norm, pre_norms, gated_mlp},
       {sizes, grouped, dense_width, rms_norm, swiglu, untied, no_bias, head_norms},
       {&rope_part, &qwen_window_part}},
      {"olmo",
       "OlmoForCausalLM",
       "model.",
       "layers.{}.",
       {olmo_model},
       {llama_attention, olmo_norms, gated_mlp},
       {sizes, grouped, dense_width, olmo_keys, swiglu, untied, no_bias, unclipped},
       {&rope_part}},
      {"olmo2",
       "Olmo2ForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, whole_qk_norm, output_norms, gated_mlp},
       {sizes, grouped, dense_width, rms_norm, swiglu, untied, no_bias, whole_norms, output_placed},
       {&rope_part}},
      {"phi3",
       "Phi3ForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {phi3_layer, pre_norms},
       {sizes, grouped, dense_width, rms_norm, swiglu, untied, phi3_keys},
       {&rope_part, &window_part}},
      {"cohere",
       "CohereForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, heads_qk_norm, pre_norms, gated_mlp},
       {sizes, grouped, dense_width, cohere_keys, cohere_only, swiglu, tied, no_bias},
       {&rope_part}},
      {"cohere2",
       "Cohere2ForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, pre_norms, gated_mlp},
       {sizes, grouped, dense_width, cohere_keys, swiglu, tied, no_bias},
       {&rope_part, &every_fourth_part}},
      {"nemotron",
       "NemotronForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, pre_norms, plain_mlp},
       {sizes, grouped, dense_width, layer_norm, nemotron_keys, untied, no_bias},
       {&rope_part}},
      {"mixtral",
       "MixtralForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, pre_norms, mixtral_moe},
       {sizes, grouped, expert_width, rms_norm, swiglu, untied, mixtral_keys, top_k, dropless},
       {&rope_part, &window_part}},
      {"qwen2_moe",
       "Qwen2MoeForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, pre_norms, gated_mlp, experts, qwen2_shared},
       {sizes, grouped, dense_width, rms_norm, swiglu, untied, fine_experts, own_width, qwen2_moe_keys, top_k,
        dropless},
       {&rope_part, &qwen_window_part, &sparse_step_part}},
      {"qwen3_moe",
       "Qwen3MoeForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, head_qk_norm, pre_norms, gated_mlp, experts},
       {sizes, grouped, dense_width, rms_norm, swiglu, untied, no_bias, head_norms, fine_experts, own_width, top_k,
        dropless},
       {&rope_part, &qwen_window_part, &sparse_step_part}},
      {"olmoe",
       "OlmoeForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, whole_qk_norm, pre_norms, experts},
       {sizes, grouped, expert_width, rms_norm, swiglu, untied, no_bias, whole_norms, unclipped, fine_experts, top_k,
        dropless},
       {&rope_part}},
      {"deepseek_v2",
       "DeepseekV2ForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {latent_attention, pre_norms, gated_mlp, experts, deepseek_moe},
       {sizes, dense_width, rms_norm, swiglu, untied, no_bias, deepseek_keys, deepseek2_keys, own_width, top_k,
        dropless},
       {&rope_part, &latent_scale_part},
       {frequencies}},
      {"deepseek_v3",
       "DeepseekV3ForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {latent_attention, pre_norms, gated_mlp, experts, deepseek_moe},
       {sizes, dense_width, rms_norm, swiglu, untied, no_bias, deepseek_keys, deepseek3_keys, own_width, top_k,
        dropless},
       {&rope_part, &latent_scale_part},
       {frequencies}},
      {"gpt_oss",
       "GptOssForCausalLM",
       "model.",
       "layers.{}.",
       {llama_model},
       {llama_attention, pre_norms, gpt_oss_moe},
       {sizes, grouped, expert_width, rms_norm, untied, mixtral_keys, gpt_oss_keys, top_k, dropless},
       {&alternating_part, &rope_part}},
  };
  return table;
}

const Family& family_named(const std::string& name) {
  for (const Family& family : families())
    if (family.name == name) return family;
  bad_input("there is no family '{}': there are {}", name, known_names());
}

const Family& family_of(const Json& config) {
  const Json* type = config.find("model_type");
  if (!type || !type->is_string()) bad_input("it has no model_type: give the config.json of a model");
  for (const Family& family : families())
    if (family.name == type->get<std::string>()) return family;
  bad_input("models of type {} cannot be read: there are {}", type->get<std::string>(), known_names());
}

}  // namespace sy
