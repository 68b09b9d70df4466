// Conversions of keys of config.json that depend on each other (ConfigRule). Families share them.
#pragma once

#include "src/families/family.h"

namespace sy {

// Rotary positions: rope_theta and rope_scaling, or rope_parameters, which holds both and
// partial_rotary_factor.
extern const ConfigRule partial_rope_rule;
// The same for families whose code ignores partial_rotary_factor. Refuses values other than 1.
extern const ConfigRule rope_rule;
extern const ConfigRule phi3_rope_rule;
extern const ConfigRule cohere_rope_rule;  // rope_theta is required
extern const ConfigRule gpt_oss_rope_rule;
extern const ConfigRule apertus_rope_rule;     // a missing scaling is llama3's
extern const ConfigRule hunyuan_rope_rule;     // type dynamic with alpha, which is ntk here
extern const ConfigRule minimax_m2_rope_rule;  // partial_rotary_factor, or rotary_dim
// The same for Gemma 3 and OLMo 3: layers with a sliding window have their own frequencies.
extern const ConfigRule gemma3_rope_rule;
extern const ConfigRule olmo3_rope_rule;

// The same for ModernBERT, with its flat keys global_rope_theta and local_rope_theta.
extern const ConfigRule modernbert_rope_rule;

// Layers with a sliding window. The other layers attend to all earlier tokens.
extern const ConfigRule window_rule;             // sliding_window: layer_types, or else all layers
extern const ConfigRule mistral_window_rule;     // the same; the default window is 4096
extern const ConfigRule ministral_window_rule;   // the same; some layers may be full
extern const ConfigRule qwen_window_rule;        // use_sliding_window: from max_window_layers on
extern const ConfigRule qwen2_moe_window_rule;   // the same: layers 0, 2, ... below that layer
extern const ConfigRule qwen3_moe_window_rule;   // the same: all layers; layer_types is ignored
extern const ConfigRule gemma2_window_rule;      // layer_types, or every second layer is full
extern const ConfigRule gpt_oss_window_rule;     // the same; the default window is 128
extern const ConfigRule olmo3_window_rule;       // layer_types, or every fourth layer is full
extern const ConfigRule dots1_window_rule;       // layer_types, or from max_window_layers on
extern const ConfigRule gemma3_window_rule;      // sliding_window_pattern: the period, default 6
extern const ConfigRule modernbert_window_rule;  // local_attention: of both sides together
extern const ConfigRule cohere2_window_rule;     // the same, default 4; no positions in full layers
extern const ConfigRule exaone4_window_rule;     // the same; no window: all have positions
// no_rope_layers, or no positions in every fourth layer; use_sliding_window and layer_types
extern const ConfigRule smollm3_layers_rule;

extern const ConfigRule attention_scale_rule;         // query_pre_attn_scalar (Gemma)
extern const ConfigRule granite_scales_rule;          // attention_multiplier, logits_scaling
extern const ConfigRule latent_attention_scale_rule;  // mscale_all_dim of rope's scaling (DeepSeek)
extern const ConfigRule greedy_top_k_rule;            // topk_method: greedy ignores groups
extern const ConfigRule deepseek_layers_rule;         // mlp_layer_types and layer_types
extern const ConfigRule reformer_rule;                // attn_layers, num_buckets, axial_pos_*
extern const ConfigRule mtp_rule;                     // num_nextn_predict_layers (DeepSeek)
extern const ConfigRule router_aux_loss_rule;         // router_aux_loss_coef
extern const ConfigRule rotary_dim_rule;              // rotary_dim (GPT-J)
extern const ConfigRule gpt2_ffn_width_rule;          // n_inner or 4 n_embd
extern const ConfigRule phi3_pad_token_rule;          // pad_token_id
extern const ConfigRule glm_pad_token_rule;           // the same with another default
extern const ConfigRule smollm3_pad_token_rule;       // the same with another default
extern const ConfigRule modernbert_pad_token_rule;    // the same with another default
extern const ConfigRule bias_rule;                    // attention_bias and mlp_bias
extern const ConfigRule seed_oss_bias_rule;           // the same and attention_out_bias
extern const ConfigRule helium_bias_rule;             // attention_bias is that of q, k and v
extern const ConfigRule roberta_positions_rule;       // max_position_embeddings: two more
extern const ConfigRule opt_embedding_width_rule;     // word_embed_proj_dim (OPT)
extern const ConfigRule falcon_rule;                  // norms and kv heads of both kinds of Falcon
extern const ConfigRule sparse_step_rule;             // decoder_sparse_step, mlp_only_layers (Qwen)
extern const ConfigRule t5_stacks_rule;               // num_decoder_layers
// Factor of the logits.
extern const ConfigRule t5_output_scale_rule, mt5_output_scale_rule, switch_output_scale_rule;
extern const ConfigRule bart_positions_rule;    // max_position_embeddings of both stacks
extern const ConfigRule led_window_rule;        // attention_window: of both sides together
extern const ConfigRule switch_layers_rule;     // num_sparse_encoder_layers, of the decoder
extern const ConfigRule hunyuan_experts_rule;   // num_experts, moe_topk: also by layer
extern const ConfigRule ernie_moe_layers_rule;  // moe_layer_interval, first and last layer

}  // namespace sy
