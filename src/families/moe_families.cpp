// Families of decoders with experts.
#include "src/families/config_rules.h"
#include "src/families/config_tables.h"
#include "src/families/tensor_tables.h"

namespace sy {

std::vector<Family> moe_families() {
  using namespace tables;
  constexpr std::string_view frequencies = "rotary_emb.inv_freq";
  const auto deepseek_v3 = [&](std::string_view name) {
    return family(llama, name, "DeepseekV3ForCausalLM",
                  {latent_attention, pre_norms, gated_mlp, experts, deepseek_bias, deepseek_shared, deepseek_mtp},
                  {sizes, dense_width, rms_norm, swiglu, untied, no_bias, deepseek_keys, rope_interleave,
                   sigmoid_scores, deepseek3_keys, moe_width, top_k, dropless},
                  {&rope_rule, &latent_attention_scale_rule, &mtp_rule}, {frequencies});
  };
  return {
      family(llama, "mixtral", "MixtralForCausalLM", {llama_attention, pre_norms, mixtral_moe},
             {sizes, required_kv_heads, head_width, expert_width, rms_norm_1e5, swiglu, untied, theta_1e6, mixtral_keys,
              top_k, dropless},
             {&rope_rule, &window_rule, &router_aux_loss_rule}),
      family(llama, "qwen2_moe", "Qwen2MoeForCausalLM", {llama_attention, pre_norms, gated_mlp, experts, qwen2_shared},
             {sizes, required_kv_heads, head_width, dense_width, rms_norm, swiglu, untied, fine_grained_experts,
              moe_width, qwen2_moe_keys, top_k, dropless},
             {&rope_rule, &qwen2_moe_window_rule, &sparse_step_rule, &router_aux_loss_rule}),
      family(llama, "qwen3_moe", "Qwen3MoeForCausalLM", {llama_attention, head_qk_norm, pre_norms, gated_mlp, experts},
             {sizes, required_kv_heads, head_width, dense_width, rms_norm, swiglu, untied, attention_bias, head_norms,
              fine_grained_experts, moe_width, top_k, dropless},
             {&rope_rule, &qwen3_moe_window_rule, &sparse_step_rule, &router_aux_loss_rule}),
      family(llama, "olmoe", "OlmoeForCausalLM", {llama_attention, whole_qk_norm, pre_norms, experts},
             {sizes, kv_heads, head_width, expert_width, rms_norm_1e5, swiglu, untied, attention_bias, whole_norms,
              clip_qkv, fine_grained_experts, top_k, dropless},
             {&rope_rule, &router_aux_loss_rule}),
      family(llama, "deepseek_v2", "DeepseekV2ForCausalLM",
             {latent_attention, pre_norms, gated_mlp, experts, deepseek_bias, deepseek_shared},
             {sizes, dense_width, rms_norm, swiglu, untied, no_bias, deepseek_keys, deepseek2_keys, moe_width, top_k,
              dropless},
             {&rope_rule, &latent_attention_scale_rule, &greedy_top_k_rule}, {frequencies}),
      deepseek_v3("deepseek_v3"),
      deepseek_v3("kimi_k2"),
      family(llama, "deepseek_v32", "DeepseekV32ForCausalLM",
             {latent_attention, deepseek_indexer, pre_norms, gated_mlp, experts, deepseek_bias, deepseek_shared,
              deepseek_mtp},
             {sizes, dense_width, rms_norm, swiglu, untied, no_bias, deepseek_keys, deepseek32_keys, sigmoid_scores,
              deepseek3_keys, moe_width, top_k, dropless},
             {&rope_rule, &latent_attention_scale_rule, &mtp_rule, &deepseek_layers_rule}, {frequencies}),
      family(
          llama, "glm4_moe", "Glm4MoeForCausalLM",
          {llama_attention, head_qk_norm, pre_norms, gated_mlp, experts, deepseek_bias, deepseek_shared, deepseek_mtp},
          {sizes, required_kv_heads, head_width, dense_width, rms_norm_1e5, swiglu, untied, attention_qkv_bias,
           half_rotation, sigmoid_scores, sigmoid_router, glm4_moe_keys, moe_width, top_k, dropless},
          {&partial_rope_rule, &mtp_rule}),
      family(llama, "dots1", "Dots1ForCausalLM",
             {llama_attention, head_qk_norm, pre_norms, gated_mlp, experts, deepseek_bias, deepseek_shared},
             {sizes, required_kv_heads, head_width, dense_width, rms_norm, swiglu, untied, attention_bias, head_norms,
              sigmoid_scores, sigmoid_router, dots1_keys, moe_width, top_k, dropless},
             {&rope_rule, &dots1_window_rule}),
      family(llama, "minimax_m2", "MiniMaxM2ForCausalLM",
             {llama_attention, whole_qk_norm, pre_norms, mixtral_moe, minimax_m2_bias},
             {sizes, required_kv_heads, required_head_width, expert_width, rms_norm, swiglu, untied, whole_norms,
              theta_5e6, mixtral_keys, sigmoid_scores, top_k, dropless},
             {&minimax_m2_rope_rule}),
      family(llama, "ernie4_5_moe", "Ernie4_5_MoeForCausalLM",
             {llama_attention, pre_norms, gated_mlp, experts, ernie_bias, deepseek_shared},
             {sizes, required_kv_heads, head_width, dense_width, rms_norm_1e5, swiglu, tied, interleaved, theta_5e5,
              ernie_moe_keys, moe_width, dropless},
             {&rope_rule, &ernie_moe_layers_rule}, {".mtp_"}),
      family(llama, "granitemoe", "GraniteMoeForCausalLM", {llama_attention, pre_norms, granite_moe},
             {sizes, kv_heads, head_width, expert_width, rms_norm, swiglu, untied, attention_bias, granite_keys,
              mixtral_keys, top_k, dropless},
             {&rope_rule, &granite_scales_rule, &router_aux_loss_rule}),
      family(llama, "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM",
             {llama_attention, hunyuan_qk_norm, pre_norms, hunyuan_router, expert_weights, hunyuan_shared},
             {sizes, kv_heads, head_width, expert_width, rms_norm_1e5, swiglu, untied, attention_bias, head_norms,
              norms_after_rope, hunyuan_moe_keys, dropless},
             {&hunyuan_rope_rule, &hunyuan_experts_rule}),
      family(llama, "gpt_oss", "GptOssForCausalLM", {llama_attention, pre_norms, gpt_oss_moe},
             {sizes, required_kv_heads, required_head_width, expert_width, rms_norm_1e5, untied, mixtral_keys,
              gpt_oss_keys, top_k, dropless},
             {&gpt_oss_window_rule, &gpt_oss_rope_rule, &router_aux_loss_rule}),
  };
}

}  // namespace sy
