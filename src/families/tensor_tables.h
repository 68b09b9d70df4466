// Tables of the tensors of families (TensorRow). Families share tables.
// Only the lists of families include this file.
#pragma once

#include "src/families/family.h"

namespace sy::tables {

// ---- tensors that many families share ----

// The embedding, the last norm and the output.
inline constexpr TensorRow llama_model[] = {
    {"embed_tokens.weight", "embedding.weight", "V D -> V D"},
    {"norm.*", "final_norm.*", "D -> D"},
    {"/lm_head.weight", "output.weight", "V D -> V D"},
};
inline constexpr TensorRow llama_attention[] = {
    {"self_attn.q_proj.weight", "attention.q.weight", "H i D -> (H i) D"},
    {"self_attn.k_proj.weight", "attention.k.weight", "K i D -> (K i) D"},
    {"self_attn.v_proj.weight", "attention.v.weight", "K i D -> (K i) D"},
    {"self_attn.o_proj.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"self_attn.q_proj.bias", "attention.q.bias", "H i -> (H i)"},
    {"self_attn.k_proj.bias", "attention.k.bias", "K i -> (K i)"},
    {"self_attn.v_proj.bias", "attention.v.bias", "K i -> (K i)"},
    {"self_attn.o_proj.bias", "attention.out.bias", "D -> D"},
};
inline constexpr TensorRow pre_norms[] = {
    {"input_layernorm.*", "attention_norm.*", "D -> D"},
    {"post_attention_layernorm.*", "ffn_norm.*", "D -> D"},
};
// Norms of the input and of the output of each sublayer, or those of the output alone.
inline constexpr TensorRow gemma_norms[] = {
    {"input_layernorm.weight", "attention_norm.weight", "D -> D"},
    {"post_attention_layernorm.weight", "attention_out_norm.weight", "D -> D"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight", "D -> D"},
    {"post_feedforward_layernorm.weight", "ffn_out_norm.weight", "D -> D"},
};
inline constexpr TensorRow gated_mlp[] = {
    {"mlp.gate_proj.weight", "mlp.up.weight", "0 F D -> F D"}, {"mlp.up_proj.weight", "mlp.up.weight", "1 F D -> F D"},
    {"mlp.down_proj.weight", "mlp.down.weight", "D F -> D F"}, {"mlp.gate_proj.bias", "mlp.up.bias", "0 F -> F"},
    {"mlp.up_proj.bias", "mlp.up.bias", "1 F -> F"},           {"mlp.down_proj.bias", "mlp.down.bias", "D -> D"},
};
inline constexpr TensorRow head_qk_norm[] = {
    {"self_attn.q_norm.weight", "attention.q_norm.weight", "i -> i"},
    {"self_attn.k_norm.weight", "attention.k_norm.weight", "i -> i"},
};
inline constexpr TensorRow whole_qk_norm[] = {
    {"self_attn.q_norm.weight", "attention.q_norm.weight", "H i -> (H i)"},
    {"self_attn.k_norm.weight", "attention.k_norm.weight", "K i -> (K i)"},
};
inline constexpr TensorRow heads_qk_norm[] = {
    {"self_attn.q_norm.weight", "attention.q_norm.weight", "H i -> H i"},
    {"self_attn.k_norm.weight", "attention.k_norm.weight", "K i -> K i"},
};
inline constexpr TensorRow experts[] = {
    {"mlp.gate.weight", "moe.router.weight", "E D -> E D"},
    {"mlp.experts.{}.gate_proj.weight", "moe.experts.up.weight", "e 0 F D -> F D"},
    {"mlp.experts.{}.up_proj.weight", "moe.experts.up.weight", "e 1 F D -> F D"},
    {"mlp.experts.{}.down_proj.weight", "moe.experts.down.weight", "e D F -> D F"},
};
inline constexpr std::span<const TensorRow> expert_weights = std::span(experts).subspan(1);

// ---- tensors of few families ----

inline constexpr TensorRow gpt2_model[] = {
    {"wte.weight", "embedding.weight", "V D -> V D"},
    {"wpe.weight", "position.weight", "P D -> P D"},
    {"ln_f.*", "final_norm.*", "D -> D"},
    {"/lm_head.*", "output.*", "V D -> V D; V -> V"},
};
// The weights of linear layers have the input as their first dimension.
inline constexpr TensorRow gpt2_layer[] = {
    {"ln_1.*", "attention_norm.*", "D -> D"},
    {"attn.c_attn.*", "attention.q.*", "H i D -> D (+H i); H i -> (+H i)"},
    {"attn.c_attn.*", "attention.k.*", "K i D -> D (+K i); K i -> (+K i)"},
    {"attn.c_attn.*", "attention.v.*", "K i D -> D (+K i); K i -> (+K i)"},
    {"attn.c_proj.*", "attention.out.*", "D H i -> (H i) D; D -> D"},
    {"ln_2.*", "ffn_norm.*", "D -> D"},
    {"mlp.c_fc.*", "mlp.up.*", "0 F D -> D F; 0 F -> F"},
    {"mlp.c_proj.*", "mlp.down.*", "D F -> F D; D -> D"},
};
inline constexpr TensorRow gptj_layer[] = {
    {"ln_1.*", "attention_norm.*", "D -> D"},
    {"attn.q_proj.weight", "attention.q.weight", "H i D -> (H i) D"},
    {"attn.k_proj.weight", "attention.k.weight", "K i D -> (K i) D"},
    {"attn.v_proj.weight", "attention.v.weight", "K i D -> (K i) D"},
    {"attn.out_proj.weight", "attention.out.weight", "D H i -> D (H i)"},
    {"mlp.fc_in.*", "mlp.up.*", "0 F D -> F D; 0 F -> F"},
    {"mlp.fc_out.*", "mlp.down.*", "D F -> D F; D -> D"},
};
inline constexpr TensorRow neox_model[] = {
    {"embed_in.weight", "embedding.weight", "V D -> V D"},
    {"final_layer_norm.*", "final_norm.*", "D -> D"},
    {"/embed_out.weight", "output.weight", "V D -> V D"},
};
inline constexpr TensorRow neox_layer[] = {
    {"attention.query_key_value.*", "attention.q.*", "H i D -> (H +1 i) D; H i -> (H +1 i)"},
    {"attention.query_key_value.*", "attention.k.*", "H i D -> (H +1 i) D; H i -> (H +1 i)"},
    {"attention.query_key_value.*", "attention.v.*", "H i D -> (H +1 i) D; H i -> (H +1 i)"},
    {"attention.dense.*", "attention.out.*", "D H i -> D (H i); D -> D"},
};
inline constexpr TensorRow bloom_model[] = {
    {"word_embeddings.weight", "embedding.weight", "V D -> V D"},
    {"word_embeddings_layernorm.*", "embedding_norm.*", "D -> D"},
    {"ln_f.*", "final_norm.*", "D -> D"},
    {"/lm_head.weight", "output.weight", "V D -> V D"},
};
// For each kv head, the rows of its queries precede those of its key and its value.
inline constexpr TensorRow bloom_attention[] = {
    {"self_attention.query_key_value.*", "attention.q.*", "(K g) i D -> (K +g i) D; (K g) i -> (K +g i)"},
    {"self_attention.query_key_value.*", "attention.k.*", "K i D -> (K +1 i) D; K i -> (K +1 i)"},
    {"self_attention.query_key_value.*", "attention.v.*", "K i D -> (K +1 i) D; K i -> (K +1 i)"},
    {"self_attention.dense.*", "attention.out.*", "D H i -> D (H i); D -> D"},
};
inline constexpr TensorRow four_h_mlp[] = {
    {"mlp.dense_h_to_4h.*", "mlp.up.*", "0 F D -> F D; 0 F -> F"},
    {"mlp.dense_4h_to_h.*", "mlp.down.*", "D F -> D F; D -> D"},
};
inline constexpr TensorRow falcon_norms[] = {
    {"input_layernorm.*", "attention_norm.*", "D -> D", "model.parallel_norms=1"},
    {"post_attention_layernorm.*", "ffn_norm.*", "D -> D", "model.parallel_norms=1"},
    {"ln_attn.*", "attention_norm.*", "D -> D", "model.parallel_norms=2"},
    {"ln_mlp.*", "ffn_norm.*", "D -> D", "model.parallel_norms=2"},
};
// The first two rows of embed_positions belong to masked tokens; no parameter covers them.
inline constexpr TensorRow opt_model[] = {
    {"embed_tokens.weight", "embedding.weight", "V D -> V D"},    {"embed_positions.weight", "", "-> +2 D"},
    {"embed_positions.weight", "position.weight", "P D -> +P D"}, {"final_layer_norm.*", "final_norm.*", "D -> D"},
    {"/lm_head.weight", "output.weight", "V D -> V D"},
};
inline constexpr TensorRow opt_attention_out[] = {
    {"self_attn.out_proj.*", "attention.out.*", "D H i -> D (H i); D -> D"},
};
inline constexpr TensorRow opt_layer[] = {
    {"self_attn_layer_norm.*", "attention_norm.*", "D -> D"},
    {"fc1.*", "mlp.up.*", "0 F D -> F D; 0 F -> F"},
    {"fc2.*", "mlp.down.*", "D F -> D F; D -> D"},
    {"final_layer_norm.*", "ffn_norm.*", "D -> D"},
};
inline constexpr TensorRow qkv_projections[] = {
    {"self_attn.q_proj.weight", "attention.q.weight", "H i D -> (H i) D"},
    {"self_attn.k_proj.weight", "attention.k.weight", "K i D -> (K i) D"},
    {"self_attn.v_proj.weight", "attention.v.weight", "K i D -> (K i) D"},
    {"self_attn.q_proj.bias", "attention.q.bias", "H i -> (H i)"},
    {"self_attn.k_proj.bias", "attention.k.bias", "K i -> (K i)"},
    {"self_attn.v_proj.bias", "attention.v.bias", "K i -> (K i)"},
};
inline constexpr TensorRow phi3_layer[] = {
    {"self_attn.qkv_proj.weight", "attention.q.weight", "H i D -> (+H i) D"},
    {"self_attn.qkv_proj.weight", "attention.k.weight", "K i D -> (+K i) D"},
    {"self_attn.qkv_proj.weight", "attention.v.weight", "K i D -> (+K i) D"},
    {"self_attn.o_proj.weight", "attention.out.weight", "D H i -> D (H i)"},
};
// The rows of the gate precede those of the up projection.
inline constexpr TensorRow fused_gated_mlp[] = {
    {"mlp.gate_up_proj.weight", "mlp.up.weight", "h F D -> (h F) D"},
    {"mlp.down_proj.weight", "mlp.down.weight", "D F -> D F"},
};
inline constexpr TensorRow glm4_norms[] = {
    {"input_layernorm.weight", "attention_norm.weight", "D -> D"},
    {"post_self_attn_layernorm.weight", "attention_out_norm.weight", "D -> D"},
    {"post_attention_layernorm.weight", "ffn_norm.weight", "D -> D"},
    {"post_mlp_layernorm.weight", "ffn_out_norm.weight", "D -> D"},
};
inline constexpr TensorRow starcoder2_mlp[] = {
    {"mlp.c_fc.*", "mlp.up.*", "0 F D -> F D; 0 F -> F"},
    {"mlp.c_proj.*", "mlp.down.*", "D F -> D F; D -> D"},
};
// Each head has a norm of its own.
inline constexpr TensorRow stablelm_qk_norm[] = {
    {"self_attn.q_layernorm.norms.{}.weight", "attention.q_norm.weight", "e i -> i"},
    {"self_attn.k_layernorm.norms.{}.weight", "attention.k_norm.weight", "e i -> i"},
};
inline constexpr TensorRow phi_model[] = {
    {"embed_tokens.weight", "embedding.weight", "V D -> V D"},
    {"final_layernorm.*", "final_norm.*", "D -> D"},
    {"/lm_head.*", "output.*", "V D -> V D; V -> V"},
};
inline constexpr TensorRow phi_layer[] = {
    {"self_attn.dense.*", "attention.out.*", "D H i -> D (H i); D -> D"},
    {"mlp.fc1.*", "mlp.up.*", "0 F D -> F D; 0 F -> F"},
    {"mlp.fc2.*", "mlp.down.*", "D F -> D F; D -> D"},
};
// Norms without weights.
inline constexpr TensorRow olmo_model[] = {
    {"embed_tokens.weight", "embedding.weight", "V D -> V D"},
    {"", "final_norm.weight", ""},
    {"/lm_head.weight", "output.weight", "V D -> V D"},
};
inline constexpr TensorRow olmo_norms[] = {
    {"", "attention_norm.weight", ""},
    {"", "ffn_norm.weight", ""},
};
inline constexpr TensorRow plain_mlp[] = {
    {"mlp.up_proj.weight", "mlp.up.weight", "0 F D -> F D"},
    {"mlp.down_proj.weight", "mlp.down.weight", "D F -> D F"},
    {"mlp.up_proj.bias", "mlp.up.bias", "0 F -> F"},
    {"mlp.down_proj.bias", "mlp.down.bias", "D -> D"},
};
inline constexpr TensorRow mixtral_moe[] = {
    {"block_sparse_moe.gate.weight", "moe.router.weight", "E D -> E D"},
    {"block_sparse_moe.experts.{}.w1.weight", "moe.experts.up.weight", "e 0 F D -> F D"},
    {"block_sparse_moe.experts.{}.w3.weight", "moe.experts.up.weight", "e 1 F D -> F D"},
    {"block_sparse_moe.experts.{}.w2.weight", "moe.experts.down.weight", "e D F -> D F"},
};
inline constexpr TensorRow minimax_m2_bias[] = {
    {"block_sparse_moe.e_score_correction_bias", "moe.selection_bias", "E -> E"}};
// The rows of the gates precede those of the up projections.
inline constexpr TensorRow granite_moe[] = {
    {"block_sparse_moe.router.layer.weight", "moe.router.weight", "E D -> E D"},
    {"block_sparse_moe.input_linear.weight", "moe.experts.up.weight", "E h F D -> E (h F) D"},
    {"block_sparse_moe.output_linear.weight", "moe.experts.down.weight", "E D F -> E D F"},
};
inline constexpr TensorRow hunyuan_qk_norm[] = {
    {"self_attn.query_layernorm.weight", "attention.q_norm.weight", "i -> i"},
    {"self_attn.key_layernorm.weight", "attention.k_norm.weight", "i -> i"},
};
inline constexpr TensorRow hunyuan_router[] = {{"mlp.gate.wg.weight", "moe.router.weight", "E D -> E D"}};
inline constexpr TensorRow hunyuan_shared[] = {
    {"mlp.shared_mlp.gate_proj.weight", "moe.shared.up.weight", "0 F D -> F D"},
    {"mlp.shared_mlp.up_proj.weight", "moe.shared.up.weight", "1 F D -> F D"},
    {"mlp.shared_mlp.down_proj.weight", "moe.shared.down.weight", "D F -> D F"},
};
inline constexpr TensorRow apertus_norms[] = {
    {"attention_layernorm.weight", "attention_norm.weight", "D -> D"},
    {"feedforward_layernorm.weight", "ffn_norm.weight", "D -> D"},
};
// The constants of xIELU stand in the files beside its parameters.
inline constexpr TensorRow xielu[] = {
    {"mlp.act_fn.alpha_p", "mlp.xielu.positive", "i -> i"},
    {"mlp.act_fn.alpha_n", "mlp.xielu.negative", "i -> i"},
    {"mlp.act_fn.beta", "", "->", {}, 0.5},
    {"mlp.act_fn.eps", "", "->", {}, -1e-6},
};
inline constexpr TensorRow qwen2_shared[] = {
    {"mlp.shared_expert.gate_proj.weight", "moe.shared.up.weight", "0 F D -> F D"},
    {"mlp.shared_expert.up_proj.weight", "moe.shared.up.weight", "1 F D -> F D"},
    {"mlp.shared_expert.down_proj.weight", "moe.shared.down.weight", "D F -> D F"},
    {"mlp.shared_expert_gate.weight", "moe.shared_gate.weight", "0 D -> 1 D"},
};
// The rows of gate and up projection alternate, unit by unit.
inline constexpr TensorRow gpt_oss_moe[] = {
    {"self_attn.sinks", "attention.sinks", "H -> H"},
    {"mlp.router.*", "moe.router.*", "E D -> E D; E -> E"},
    {"mlp.experts.gate_up_proj", "moe.experts.up.weight", "E h F D -> E D (F h)"},
    {"mlp.experts.gate_up_proj_bias", "moe.experts.up.bias", "E h F -> E (F h)"},
    {"mlp.experts.down_proj", "moe.experts.down.weight", "E D F -> E F D"},
    {"mlp.experts.down_proj_bias", "moe.experts.down.bias", "E D -> E D"},
};

// The rotated elements (r) of a query and a key come last in these files, and first in our
// parameters.
inline constexpr TensorRow latent_attention[] = {
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
// Indexer of DeepSeek-V3.2, whose queries are those of its heads one after another.
inline constexpr TensorRow deepseek_indexer[] = {
    {"self_attn.indexer.wq_b.weight", "attention.indexer.q.weight", "H w L -> (H w) L"},
    {"self_attn.indexer.wk.weight", "attention.indexer.k.weight", "w D -> w D"},
    {"self_attn.indexer.k_norm.*", "attention.indexer.k_norm.*", "w -> w"},
    {"self_attn.indexer.weights_proj.weight", "attention.indexer.head_weights.weight", "H D -> H D"},
};
// Multi-token prediction. The published files have copies of the embedding and of the output. The
// input of the projection is the norm of the embedding, then that of the hidden state.
inline constexpr TensorRow deepseek_mtp[] = {
    {"embed_tokens.weight", "/embedding.weight", "V D -> V D", "mtp.hidden_projection.weight"},
    {"enorm.weight", "mtp.embedding_norm.weight", "D -> D"},
    {"hnorm.weight", "mtp.hidden_norm.weight", "D -> D"},
    {"eh_proj.weight", "mtp.embedding_projection.weight", "D I -> D +I"},
    {"eh_proj.weight", "mtp.hidden_projection.weight", "D I -> D +I"},
    {"shared_head.norm.weight", "mtp.head_norm.weight", "D -> D"},
    {"shared_head.head.weight", "/output.weight", "V D -> V D", "mtp.hidden_projection.weight"},
};
inline constexpr TensorRow deepseek_bias[] = {{"mlp.gate.e_score_correction_bias", "moe.selection_bias", "E -> E"}};
inline constexpr TensorRow ernie_bias[] = {
    {"mlp.moe_statics.e_score_correction_bias", "moe.selection_bias", "E -> 1 E"}};
inline constexpr TensorRow deepseek_shared[] = {
    {"mlp.shared_experts.gate_proj.weight", "moe.shared.up.weight", "0 F D -> F D"},
    {"mlp.shared_experts.up_proj.weight", "moe.shared.up.weight", "1 F D -> F D"},
    {"mlp.shared_experts.down_proj.weight", "moe.shared.down.weight", "D F -> D F"},
};

// Names of tensors (Family): the base, the prefix of a layer, and those outside of the layers.
struct ModelNames {
  std::string_view base, layer_prefix;
  std::vector<std::span<const TensorRow>> rows;
};
inline const ModelNames llama{"model.", "layers.{}.", {llama_model}}, gpt2{"transformer.", "h.{}.", {gpt2_model}},
    bloom{"transformer.", "h.{}.", {bloom_model}};

// Returns a family with these names outside of its layers.
inline Family family(const ModelNames& names, std::string_view name, std::string_view architecture,
                     std::vector<std::span<const TensorRow>> layer_rows,
                     std::vector<std::span<const ConfigRow>> config_rows, std::vector<const ConfigRule*> rules,
                     std::vector<std::string_view> ignored = {}, std::string_view decoder_layer_prefix = {},
                     std::vector<std::span<const TensorRow>> decoder_layer_rows = {}) {
  return {name,
          architecture,
          names.base,
          names.layer_prefix,
          names.rows,
          std::move(layer_rows),
          std::move(config_rows),
          std::move(rules),
          std::move(ignored),
          decoder_layer_prefix,
          std::move(decoder_layer_rows)};
}

}  // namespace sy::tables
