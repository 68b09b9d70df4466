// What several keys of config.json say together, each in one place for all families that have it.
#pragma once

#include "src/families/family.h"

namespace sy {

// Rotary positions: rope_theta and rope_scaling, or rope_parameters, which has both and a partial_rotary_factor.
extern const ConfigPart partial_rope_part;
// The same of families whose code ignores partial_rotary_factor: anything but 1 is refused.
extern const ConfigPart rope_part;
extern const ConfigPart phi3_rope_part;
extern const ConfigPart cohere_rope_part;  // rope_theta must be there
extern const ConfigPart gpt_oss_rope_part;
// The same of Gemma 3, whose windowed layers have frequencies of their own.
extern const ConfigPart rope_by_kind_part;

// Which layers see a window alone.
extern const ConfigPart window_part;            // sliding_window: all layers, unless layer_types says more
extern const ConfigPart mistral_window_part;    // the same; an absent key is a window of 4096
extern const ConfigPart qwen_window_part;       // use_sliding_window: layers from max_window_layers on
extern const ConfigPart qwen2_moe_window_part;  // use_sliding_window: layers 0, 2, ... below max_window_layers
extern const ConfigPart qwen3_moe_window_part;  // use_sliding_window: all layers, whatever layer_types says
extern const ConfigPart gemma2_window_part;     // layer_types; if it is absent, every second layer sees all
extern const ConfigPart gpt_oss_window_part;    // the same, with another window if that key is absent
extern const ConfigPart gemma3_window_part;     // the same with sliding_window_pattern, or every sixth
extern const ConfigPart cohere2_window_part;    // every fourth; layers that see all have no positions

extern const ConfigPart attention_scale_part;  // query_pre_attn_scalar (Gemma)
extern const ConfigPart latent_scale_part;     // mscale_all_dim of rope's scaling (DeepSeek)
extern const ConfigPart greedy_part;           // topk_method: greedy ignores groups (DeepSeek-V2)
extern const ConfigPart router_loss_part;      // router_aux_loss_coef, where output_router_logits is true
extern const ConfigPart rotary_dim_part;       // rotary_dim (GPT-J)
extern const ConfigPart gpt2_width_part;       // n_inner or 4 n_embd
extern const ConfigPart phi3_pad_part;         // pad_token_id
extern const ConfigPart bias_part;             // attention_bias and mlp_bias
extern const ConfigPart opt_width_part;        // word_embed_proj_dim (OPT)
extern const ConfigPart falcon_part;           // which norms and kv heads its kinds have
extern const ConfigPart sparse_step_part;      // decoder_sparse_step, mlp_only_layers (Qwen)

}  // namespace sy
