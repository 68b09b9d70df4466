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
// The same for Gemma 3: layers with a sliding window have their own frequencies.
extern const ConfigRule rope_by_layer_type_rule;

// The same for ModernBERT, with its flat keys global_rope_theta and local_rope_theta.
extern const ConfigRule modernbert_rope_rule;

// Layers with a sliding window. The other layers attend to all earlier tokens.
extern const ConfigRule window_rule;             // sliding_window: layer_types, or else all layers
extern const ConfigRule mistral_window_rule;     // the same; the default window is 4096
extern const ConfigRule qwen_window_rule;        // use_sliding_window: from max_window_layers on
extern const ConfigRule qwen2_moe_window_rule;   // the same: layers 0, 2, ... below that layer
extern const ConfigRule qwen3_moe_window_rule;   // the same: all layers; layer_types is ignored
extern const ConfigRule gemma2_window_rule;      // layer_types, or every second layer is full
extern const ConfigRule gpt_oss_window_rule;     // the same; the default window is 128
extern const ConfigRule gemma3_window_rule;      // sliding_window_pattern: the period, default 6
extern const ConfigRule modernbert_window_rule;  // local_attention: of both sides together
extern const ConfigRule cohere2_window_rule;     // the same, default 4; no positions in full layers

extern const ConfigRule attention_scale_rule;         // query_pre_attn_scalar (Gemma)
extern const ConfigRule latent_attention_scale_rule;  // mscale_all_dim of rope's scaling (DeepSeek)
extern const ConfigRule greedy_top_k_rule;            // topk_method: greedy ignores groups
extern const ConfigRule mtp_rule;                     // num_nextn_predict_layers (DeepSeek)
extern const ConfigRule router_aux_loss_rule;         // router_aux_loss_coef
extern const ConfigRule rotary_dim_rule;              // rotary_dim (GPT-J)
extern const ConfigRule gpt2_ffn_width_rule;          // n_inner or 4 n_embd
extern const ConfigRule phi3_pad_token_rule;          // pad_token_id
extern const ConfigRule bias_rule;                    // attention_bias and mlp_bias
extern const ConfigRule roberta_positions_rule;       // max_position_embeddings: two more
extern const ConfigRule opt_embedding_width_rule;     // word_embed_proj_dim (OPT)
extern const ConfigRule falcon_rule;                  // norms and kv heads of both kinds of Falcon
extern const ConfigRule sparse_step_rule;             // decoder_sparse_step, mlp_only_layers (Qwen)

}  // namespace sy
