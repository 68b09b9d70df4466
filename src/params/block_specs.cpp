#include "src/params/block_specs.h"

#include <algorithm>

namespace sy {
namespace {

AttentionSpec attention_spec(const Config::Model& m) {
  AttentionSpec a{
      m.heads, m.kv_heads, m.head_dim, m.head_dim, m.window, {}, {}, static_cast<float>(m.attention_softcap), m.bias};
  if (m.position == Position::rope)
    a.rope = {m.rope_theta, static_cast<Index>(static_cast<double>(m.head_dim) * m.rope_fraction / 2) * 2};
  if (m.position == Position::alibi || m.position == Position::t5)
    a.relative = {m.position, m.seq_len, m.t5_buckets, m.t5_max_distance, m.t5_shared};
  switch (m.attention) {
    case AttentionPattern::causal:
      break;
    case AttentionPattern::strided:
      a.sparse = Sparsity::strided(m.attention_stride);
      break;
    case AttentionPattern::fixed:
      a.sparse = Sparsity::fixed(m.attention_stride, m.attention_summary);
      break;
    case AttentionPattern::longformer:
      a.sparse = Sparsity::longformer(m.window, m.global_tokens);
      a.window = 0;  // global tokens are seen from beyond it
  }
  a.sinks = m.attention_sinks;
  if (m.qk_norm) a.qk_norm = static_cast<float>(m.norm_eps);
  return a;
}

MoeSpec moe_spec(const Config& config) {
  const Config::Moe& e = config.moe;
  const FfnActivation activation = config.ffn_activation();
  const RouteDesc route{e.score,
                        static_cast<int>(e.top_k),
                        e.renormalize,
                        static_cast<float>(e.scale),
                        static_cast<int>(e.groups),
                        static_cast<int>(e.group_limit)};
  MoeSpec spec{e.experts,
               {route, e.capacity_factor, e.capacity_scope, e.drop_order, e.aux_loss, e.aux_scope, e.z_loss},
               {activation, e.d_ff, false},
               {}};
  if (e.shared_experts > 0) spec.shared = {activation, e.shared_experts * e.d_ff, false};
  return spec;
}

}  // namespace

NormSpec final_norm_spec(const Config& config) {
  return {config.model.norm, static_cast<float>(config.model.norm_eps), config.model.bias};
}

std::vector<BlockSpec> block_specs(const Config& config) {
  const Config::Model& m = config.model;
  std::vector<BlockSpec> blocks;
  for (Index layer = 0; layer < m.layers; ++layer) {
    blocks.push_back({final_norm_spec(config), m.norm_position, m.parallel_block,
                      attention_spec(config.model_of(layer)), MlpSpec{config.ffn_activation(), m.d_ff, m.bias}});
    if (config.is_moe(layer)) blocks.back().ffn = moe_spec(config);
  }
  return blocks;
}

Index count_moe(const std::vector<BlockSpec>& blocks) {
  return std::count_if(blocks.begin(), blocks.end(), [](const BlockSpec& block) { return block.moe() != nullptr; });
}

}  // namespace sy
