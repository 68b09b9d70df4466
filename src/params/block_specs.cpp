#include "src/params/block_specs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace sy {
namespace {

// Layers that have a bias.
struct BiasPlacement {
  bool qkv, attention_out, mlp, norm;
};
BiasPlacement bias_placement(const Config::Model& m) {
  constexpr std::pair<Biases, BiasPlacement> table[] = {
      {Biases::none, {false, false, false, false}},    {Biases::all, {true, true, true, true}},
      {Biases::qkv, {true, false, false, false}},      {Biases::mlp, {false, false, true, false}},
      {Biases::attention, {true, true, false, false}},
  };
  BiasPlacement placement =
      std::find_if(std::begin(table), std::end(table), [&](const auto& row) { return row.first == m.bias; })->second;
  if (m.norm_bias != NormBias::automatic) placement.norm = m.norm_bias == NormBias::present;
  return placement;
}

float norm_offset(const Config::Model& m) {
  return m.norm_offset ? 1.0f : 0.0f;
}

// Returns the default factor of cos and sin for a scaling.
double attention_factor(const RopeSpec& r) {
  if (r.scaling == RopeScaling::yarn) return 0.1 * std::log(r.factor) + 1;
  if (r.scaling == RopeScaling::longrope)
    return std::sqrt(1 + std::log(r.factor) / std::log(static_cast<double>(r.original_length)));
  return 1;
}

RopeSpec rope_spec(const Config::Model& m) {
  const Index width = m.kv_lora_rank > 0 ? m.qk_rope_head_dim : m.head_dim;
  RopeSpec r{m.rope_theta, static_cast<Index>(static_cast<double>(width) * m.rope_fraction / 2) * 2, m.rope_pairs};
  if (m.rope_scaling == RopeScaling::none) return r;
  r.scaling = m.rope_scaling;
  r.factor = m.rope_factor;
  r.original_length = m.rope_original_length;
  r.length = m.seq_len;
  r.low_frequency = m.rope_low_frequency;
  r.high_frequency = m.rope_high_frequency;
  r.beta_fast = m.rope_beta_fast;
  r.beta_slow = m.rope_beta_slow;
  r.whole_dimensions = m.rope_whole_dimensions;
  if (r.scaling == RopeScaling::longrope) {
    r.short_factors = m.rope_short_factors;
    r.long_factors = m.rope_long_factors;
  }
  r.attention_factor = m.rope_attention_factor > 0 ? m.rope_attention_factor : attention_factor(r);
  return r;
}

CoreAttentionSpec core_attention_spec(const Config::Model& m) {
  const BiasPlacement bias = bias_placement(m);
  const double scale = m.attention_scale > 0 ? m.attention_scale : 1.0 / std::sqrt(static_cast<double>(m.key_width()));
  CoreAttentionSpec a{.heads = m.heads,
                      .kv_heads = m.kv_heads,
                      .key_width = m.key_width(),
                      .value_width = m.value_width(),
                      .window = m.window,
                      .rope = {},
                      .scale = static_cast<float>(scale),
                      .softcap = static_cast<float>(m.attention_softcap),
                      .sinks = m.attention_sinks,
                      .causal = m.kind == ModelKind::decoder,
                      .qkv_bias = bias.qkv,
                      .out_bias = bias.attention_out};
  switch (m.position) {
    case Position::none:
    case Position::learned:  // the embedding adds learned, axial and sinusoidal positions
    case Position::axial:
    case Position::sinusoidal:
      break;
    case Position::rope:
      a.rope = rope_spec(m);
      break;
    case Position::alibi:
    case Position::t5:
      a.relative = {m.position, m.t5_buckets, m.t5_max_distance, m.t5_shared, m.alibi_scale, {}};
  }
  switch (m.attention) {
    case AttentionPattern::causal:
    case AttentionPattern::full:
    case AttentionPattern::indexed:  // the indexer selects
    case AttentionPattern::lsh:      // the hash does
      break;
    case AttentionPattern::local:
      a.sparse = SparsePattern::chunks(m.local_chunk_length, m.local_chunks_before);
      break;
    case AttentionPattern::strided:
      a.sparse = SparsePattern::strided(m.attention_stride);
      break;
    case AttentionPattern::fixed:
      a.sparse = SparsePattern::fixed(m.attention_stride, m.attention_summary);
      break;
    case AttentionPattern::longformer:
      if (!a.causal && m.global_tokens == 0) break;  // the window alone
      a.sparse = SparsePattern::longformer(m.window, m.global_tokens);
      a.window = 0;  // queries see global tokens outside the window
  }
  return a;
}

LatentAttentionSpec latent_attention_spec(const Config::Model& m) {
  const BiasPlacement bias = bias_placement(m);
  SY_ASSERT(m.kv_heads == m.heads && m.qk_norm == QkNormKind::none && !bias.qkv && !bias.attention_out,
            "latent attention with {} kv heads of {}, or with an unsupported setting", m.kv_heads, m.heads);
  return {core_attention_spec(m), m.kv_lora_rank, m.q_lora_rank, m.qk_rope_head_dim,
          static_cast<float>(m.latent_norm_eps > 0 ? m.latent_norm_eps : m.norm_eps)};
}

std::optional<QkNormSpec> qk_norm_spec(const Config::Model& m) {
  if (m.qk_norm == QkNormKind::none) return {};
  return QkNormSpec{.scope = m.qk_norm == QkNormKind::whole ? QkNormScope::projection : QkNormScope::head,
                    .kind = m.qk_norm == QkNormKind::head_layernorm ? NormKind::layernorm : NormKind::rmsnorm,
                    .eps = static_cast<float>(m.norm_eps),
                    .offset = norm_offset(m),
                    .after_rope = m.qk_norm_after_rope};
}

AttentionSpec attention_spec(const Config::Model& m) {
  AttentionSpec a{core_attention_spec(m)};
  a.qk_norm = qk_norm_spec(m);
  a.clip_qkv = static_cast<float>(m.clip_qkv);
  a.global_projections = m.global_projections;
  return a;
}

// seed: of the rotations
LshAttentionSpec lsh_attention_spec(const Config::Model& m, std::uint64_t seed) {
  SY_ASSERT(m.kv_heads == m.heads && m.qk_norm == QkNormKind::none, "hashing with {} kv heads of {}, or with norms",
            m.kv_heads, m.heads);
  LshAttentionSpec a{core_attention_spec(m), m.lsh_rounds};
  a.scale = m.attention_scale > 0 ? static_cast<float>(m.attention_scale) : 1.0f;
  if (m.lsh_buckets != std::vector<double>{1})
    for (const double factor : m.lsh_buckets) a.factors.push_back(static_cast<Index>(factor));
  a.desc = {m.lsh_chunk_length,
            m.lsh_chunks_before,
            m.lsh_chunks_after,
            a.causal,
            a.scale,
            static_cast<float>(a.key_width) * 1e-6f};
  a.seed = seed;
  return a;
}

CrossAttentionSpec cross_attention_spec(const Config::Model& m, Index encoder_length) {
  CrossAttentionSpec a{core_attention_spec(m), encoder_length};
  a.window = 0;
  a.rope = {};
  a.sparse = {};
  a.relative = {};
  a.sinks = false;
  a.causal = false;
  return a;
}

// In the warm-up of an indexer, queries attend to all keys.
std::optional<IndexerSpec> indexer_spec(const Config::Model& m, const Config::Train& t) {
  if (m.attention != AttentionPattern::indexed) return {};
  const Index topk = t.indexer == IndexerStage::warmup ? 0 : m.index_topk;
  return IndexerSpec{m.index_n_heads, m.index_head_dim, topk, static_cast<float>(t.indexer_loss_weight)};
}

SublayerSpec attention_sublayer(const Config& config, Index layer) {
  const Config::Model& m = config.model_of(layer);
  const Config::Train& t = config.train;
  if (m.attention == AttentionPattern::lsh) {
    LshAttentionSpec spec = lsh_attention_spec(m, t.seed);
    if (const auto own = config.lsh_rotations.find(layer); own != config.lsh_rotations.end())
      spec.rotations = own->second;
    return spec;
  }
  const auto with_indexer = [&](auto spec) {
    spec.indexer = indexer_spec(m, t);
    return spec;
  };
  if (m.kv_lora_rank > 0) return with_indexer(latent_attention_spec(m));
  return with_indexer(attention_spec(m));
}

MoeSpec moe_spec(const Config& config) {
  const Config::Moe& e = config.moe;
  const FfnActivation activation = config.expert_activation();
  const RouteDesc route{e.score,
                        static_cast<int>(e.top_k),
                        e.renormalizes(),
                        static_cast<float>(e.scale),
                        static_cast<int>(e.groups),
                        static_cast<int>(e.topk_groups),
                        e.group_score,
                        e.choice == Choice::noisy || e.choice == Choice::sampled,
                        e.aux_probability == AuxProbability::score};
  MoeSpec spec{e.experts,
               {route, e.capacity_factor, e.capacity_scope, e.drop_order, e.aux_loss, e.aux_scope, e.z_loss,
                e.aux_layers == AuxLayers::joint},
               {activation, e.d_ff, e.bias},
               {}};
  spec.router.bias = e.router_bias;
  if (e.choice == Choice::noisy) spec.router.noise = {.scale = static_cast<float>(e.noise)};
  if (e.choice == Choice::sampled) spec.router.noise = {.distribution = Distribution::gumbel};
  // The scale exceeds any score or bias, so that the round-robin order decides alone. Group scores
  // contain it, so that a group limit binds here too, and the load may be uneven.
  if (e.choice == Choice::balanced) spec.router.noise = {.distribution = Distribution::round_robin, .scale = 0x1p40f};
  spec.router.learned_noise_stddev = e.learned_noise;
  if (e.jitter > 0) spec.router.jitter = {.distribution = Distribution::uniform, .scale = static_cast<float>(e.jitter)};
  if (e.shared_experts > 0) spec.shared = {activation, e.shared_d_ff, false, e.shared_gate};
  return spec;
}

// Appends the blocks of a stack.
// - config: of the stack
// - prefix: of its parameters; empty if the model has one stack
// - encoder_length: above 0 if its layers attend to an encoder
// - moe_layers: number of MoE layers before it; becomes that after it
void append_blocks(const Config& config, const std::string& prefix, Index encoder_length, std::size_t& moe_layers,
                   std::vector<BlockSpec>& blocks) {
  const Config::Model& m = config.model;
  const NormPlacement norms = norm_placement(m.norm_position);
  for (Index layer = 0; layer < config.num_blocks(); ++layer) {
    BranchSpec attention{.name = "attention",
                         .norm = "attention_norm",
                         .out_norm = "attention_out_norm",
                         .norms = norms,
                         .scale = static_cast<float>(m.residual_scale),
                         .sublayer = attention_sublayer(config, layer)};
    if (auto* const core = std::get_if<AttentionSpec>(&attention.sublayer); core && core->relative)
      core->relative->stack = prefix;
    if (prefix.empty() && config.has_visible_prefix())
      std::visit(
          [](auto& spec) {
            if constexpr (std::is_base_of_v<CoreAttentionSpec, std::decay_t<decltype(spec)>>)
              spec.visible_prefix = true;
          },
          attention.sublayer);
    if (layer == 0 && !m.first_norm) attention.norms.pre = false;
    BranchSpec ffn{.name = "mlp",
                   .norm = "ffn_norm",
                   .out_norm = "ffn_out_norm",
                   .norms = norms,
                   .scale = static_cast<float>(m.residual_scale),
                   .sublayer = MlpSpec{config.ffn_activation(), m.d_ff, bias_placement(m).mlp}};
    if (config.is_moe(layer)) {
      MoeSpec moe = moe_spec(config);
      if (!config.moe.physical_to_logical.empty()) moe.physical_to_logical = config.moe.physical_to_logical[moe_layers];
      ++moe_layers;
      ffn.name = "moe";
      ffn.sublayer = std::move(moe);
    }
    if (m.parallel_block && norms.pre && m.parallel_norms == 1) {
      ffn.shared_norm = true;
      ffn.norm = attention.norm;
    }
    BlockSpec& block = blocks.emplace_back(BlockSpec{norm_spec(config), {}});
    if (!prefix.empty()) block.prefix = prefix + layer_prefix(layer);
    block.groups.push_back({{attention}});
    if (encoder_length > 0)
      block.groups.push_back({{BranchSpec{.name = "cross_attention",
                                          .norm = "cross_attention_norm",
                                          .out_norm = "cross_attention_out_norm",
                                          .norms = norms,
                                          .scale = static_cast<float>(m.residual_scale),
                                          .sublayer = cross_attention_spec(m, encoder_length)}}});
    if (m.parallel_block)
      block.groups.back().branches.push_back(ffn);
    else
      block.groups.push_back({{ffn}});
  }
}

}  // namespace

NormPlacement norm_placement(NormPosition position) {
  constexpr std::pair<NormPosition, NormPlacement> table[] = {
      {NormPosition::pre, {true, false, false}},
      {NormPosition::post, {false, false, true}},
      {NormPosition::both, {true, true, false}},
      {NormPosition::output, {false, true, false}},
      {NormPosition::residual, {true, false, false, true}},
  };
  return std::find_if(std::begin(table), std::end(table), [&](const auto& row) { return row.first == position; })
      ->second;
}

NormSpec norm_spec(const Config& config) {
  const Config::Model& m = config.model;
  return {{m.norm, static_cast<float>(m.norm_eps), norm_offset(m)}, bias_placement(m).norm};
}

NormSpec final_norm_spec(const Config& config) {
  NormSpec spec = norm_spec(config);
  if (norm_placement(config.model.norm_position).post_residual) spec.kind = NormKind::none;
  return spec;
}

bool has_mlp_bias(const Config& config) {
  return bias_placement(config.model).mlp;
}

const CoreAttentionSpec& BlockSpec::attention() const {
  const CoreAttentionSpec* const attention = find<CoreAttentionSpec>();
  SY_ASSERT(attention, "a block without attention");
  return *attention;
}

std::string decoder_prefix(const Config& config) {
  return config.stacks.empty() ? "" : "decoder.";
}

std::vector<BlockSpec> block_specs(const Config& config) {
  std::vector<BlockSpec> blocks;
  std::size_t moe_layers = 0;
  if (config.stacks.empty()) {
    append_blocks(config, "", 0, moe_layers, blocks);
    return blocks;
  }
  append_blocks(config.of_stack(0), "encoder.", 0, moe_layers, blocks);
  append_blocks(config.of_stack(1), decoder_prefix(config), config.encoder_length(), moe_layers, blocks);
  return blocks;
}

void add_block_params(ParamList& list, const BlockSpec& block, Index layer) {
  const std::string prefix = block.prefix_of(layer);
  block.for_each_branch([&](const BranchSpec& branch) {
    const bool input_norm = branch.norms.pre || branch.norms.post_residual;  // one parameter
    if (input_norm && !branch.shared_norm) list.norm(prefix + branch.norm, block.norm);
    std::visit([&](const auto& spec) { add_params(list, prefix + branch.name, spec); }, branch.sublayer);
    if (branch.norms.post_sublayer) list.norm(prefix + branch.out_norm, block.norm);
  });
}

Index count_moe(const std::vector<BlockSpec>& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), Index{0},
                         [](Index n, const BlockSpec& block) { return n + std::ssize(block.all<MoeSpec>()); });
}

}  // namespace sy
