// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024) as data.
#pragma once

#include "src/params/attention_spec.h"

namespace sy {

// Keys and values of all heads are projections of one compressed vector (latent) per token. Queries
// may be projections of another one. The first qk_rope_head_dim elements of a key are shared by all
// heads. They and the same elements of the queries are rotated, no others.
struct LatentAttentionSpec : CoreAttentionSpec {
  // Widths of the latents. q_lora_rank = 0: queries are projections of the attention's input.
  Index kv_lora_rank, q_lora_rank;
  Index qk_rope_head_dim;  // rotated elements of a key, included in key_width
  float eps;               // of the RMSNorms of the latents
};

void add_params(ParamList& list, const std::string& name, const LatentAttentionSpec& a);
SublayerCosts costs(const LatentAttentionSpec& a, Index seq_len);
// K: heads; r: rotated elements of a head's query or key, which come first; n: its other elements.
NamedSizes sizes_of(const LatentAttentionSpec& a);

}  // namespace sy
