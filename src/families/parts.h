// Conversions of keys of config.json that depend on each other (ConfigPart). Families share them.
#pragma once

#include "src/families/family.h"

namespace sy {

// Rotary positions: rope_theta and rope_scaling, or rope_parameters, which holds both and
// partial_rotary_factor.
extern const ConfigPart partial_rope_part;
// The same for families whose code ignores partial_rotary_factor. Refuses values other than 1.
extern const ConfigPart rope_part;
extern const ConfigPart phi3_rope_part;
extern const ConfigPart cohere_rope_part;  // rope_theta is required
extern const ConfigPart gpt_oss_rope_part;
// The same for Gemma 3: layers with a sliding window have their own frequencies.
extern const ConfigPart rope_by_kind_part;

// Layers with a sliding window. The other layers attend to all earlier tokens.
extern const ConfigPart window_part;            // sliding_window: layer_types, or else all layers
extern const ConfigPart mistral_window_part;    // the same; the default window is 4096
extern const ConfigPart qwen_window_part;       // use_sliding_window: from max_window_layers on
extern const ConfigPart qwen2_moe_window_part;  // the same: layers 0, 2, ... below that layer
extern const ConfigPart qwen3_moe_window_part;  // the same: all layers; layer_types is ignored
extern const ConfigPart gemma2_window_part;     // layer_types, or every second layer is full
extern const ConfigPart gpt_oss_window_part;    // the same; the default window is 128
extern const ConfigPart gemma3_window_part;     // sliding_window_pattern: the period, default 6
extern const ConfigPart cohere2_window_part;    // the same, default 4; no positions in full layers

extern const ConfigPart attention_scale_part;  // query_pre_attn_scalar (Gemma)
extern const ConfigPart latent_scale_part;     // mscale_all_dim of rope's scaling (DeepSeek)
extern const ConfigPart greedy_part;           // topk_method: greedy ignores groups (DeepSeek-V2)
extern const ConfigPart router_loss_part;      // router_aux_loss_coef, if output_router_logits
extern const ConfigPart rotary_dim_part;       // rotary_dim (GPT-J)
extern const ConfigPart gpt2_width_part;       // n_inner or 4 n_embd
extern const ConfigPart phi3_pad_part;         // pad_token_id
extern const ConfigPart bias_part;             // attention_bias and mlp_bias
extern const ConfigPart opt_width_part;        // word_embed_proj_dim (OPT)
extern const ConfigPart falcon_part;           // norms and kv heads of both kinds of Falcon
extern const ConfigPart sparse_step_part;      // decoder_sparse_step, mlp_only_layers (Qwen)

}  // namespace sy
