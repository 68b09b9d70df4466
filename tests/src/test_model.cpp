// The whole model, forward and backward, is compared with the double-precision reference and its
// finite differences.
#include <gtest/gtest.h>

#include "src/model/engine.h"
#include "src/train/memory.h"
#include "src/train/pipeline_schedule.h"
#include "tests/src/gradient_check.h"
#include "tests/src/reference_model.h"

namespace sy {
namespace {

using reference::Numbers;

constexpr const char* base = R"(
[model]
layers = 2
d_model = 12
heads = 4
kv_heads = 2
head_dim = 6
d_ff = 10
seq_len = 7
[moe]
experts = 5
top_k = 2
d_ff = 9
capacity_factor = 0.8
aux_loss = 0.3
z_loss = 0.05
)";

Mesh single_mesh(Comm& self) {
  return make_mesh(self, Layout{});
}

struct Case {
  const char* name;
  std::vector<std::string> overrides;
};

const std::vector<std::string> indexed = {"--model.attention=indexed", "--model.index_n_heads=3",
                                          "--model.index_head_dim=8", "--model.index_topk=3"};
const std::vector<std::string> hashed = {
    "--model.attention=lsh", "--model.kv_heads=0",   "--model.position=learned",  "--model.seq_len=12",
    "--model.lsh_buckets=4", "--model.lsh_rounds=2", "--model.lsh_chunk_length=3"};
std::vector<std::string> with(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// Expects the running averages after one pass: of 0 and 1, and of the moments of the pass, once.
void expect_averages(Engine& engine, const reference::Model& model) {
  const std::vector<float> averages = engine.batch_norm_averages();
  const Index d = engine.config().model.d_model;
  ASSERT_EQ(averages.size(), model.moments_of_batch_norms().size() * 2 * static_cast<std::size_t>(d));
  for (const ParamSpec& spec : engine.store().specs()) {
    if (!spec.batch_norm) continue;
    const std::string name = spec.name.substr(0, spec.name.rfind('.'));
    const reference::ColumnMoments& m = model.moments_of_batch_norms().at(name);
    for (Index i = 0; i < d; ++i) {
      const double mean = 0.1 * m.mean[i], variance = 0.9 + 0.1 * m.variance[i] * m.count / (m.count - 1);
      EXPECT_NEAR(averages[*spec.batch_norm * 2 * d + i], mean, 1e-5 * (1 + std::abs(mean))) << name;
      EXPECT_NEAR(averages[(*spec.batch_norm * 2 + 1) * d + i], variance, 1e-5 * variance) << name;
    }
  }
}

class WholeModel : public testing::TestWithParam<Case> {};

TEST_P(WholeModel, LossAndGradientsMatchReference) {
  const Config config = parse_config(base, "test", GetParam().overrides);
  const Index V = 11, B = 3, S = config.model.seq_len, T = B * S;
  const auto self = make_comm_self();
  Engine engine(config, V, make_cpu(), single_mesh(*self), true);
  engine.store().initialize(7);

  // Weights are larger than initial ones, so that every path matters. Norms differ from 1, and
  // biases from 0.
  reference::Parameters parameters;
  for (const ParamSpec& spec : engine.store().specs()) {
    const View w = engine.store().get(spec.name).weight;
    const RandomStream random(11, spec.name);
    Numbers values(w.elements());
    for (Index i = 0; i < w.elements(); ++i) {
      w.f32()[i] = static_cast<float>((spec.init.kind == InitKind::ones ? 1.0 : 0.0) + 0.3 * random.normal(i));
      values[i] = w.f32()[i];
    }
    parameters[spec.name] = values;
  }
  std::vector<std::int32_t> ids(T), targets(T);
  const RandomStream draw(3, "tokens");
  for (Index i = 0; i < T; ++i) {
    ids[i] = static_cast<std::int32_t>(draw.bits(i) % V);
    targets[i] = i == 4 ? -1 : static_cast<std::int32_t>(draw.bits(1000 + i) % V);
  }

  engine.forward_backward({B, S, ids, targets, T - 1, B, 1});
  const Statistics found = engine.take_statistics();

  reference::Model model(config, V, B, {ids.begin(), ids.end()}, {targets.begin(), targets.end()});
  const reference::ModelLoss expected = model.loss(parameters, false);
  EXPECT_NEAR(found.loss_sum / static_cast<double>(T - 1), expected.cross_entropy, 2e-6 * expected.cross_entropy);
  double aux = 0, z = config.train.z_loss * found.lse_square_sum / static_cast<double>(T - 1);
  std::size_t layer = 0;
  Index dropped_total = 0;
  for (const RouterStats& s : found.layers) {
    aux += s.aux_loss;
    z += s.z_loss;
    const reference::Decision& d = model.decisions()[layer++];
    std::vector<Index> routed(config.moe.experts), dropped(config.moe.experts);
    for (std::size_t a = 0; a < d.experts.size(); ++a) {
      ++routed[reference::whole(d.experts[a])];
      dropped[reference::whole(d.experts[a])] += d.dispatch_mask[a] == 0;
      dropped_total += d.dispatch_mask[a] == 0;
    }
    EXPECT_EQ(s.routed, routed);
    EXPECT_EQ(s.dropped, dropped);
  }
  if (config.moe.experts > 0 && config.moe.capacity_factor == 0.8) {
    EXPECT_GT(dropped_total, 0) << "the case must drop";
  }
  EXPECT_NEAR(aux, expected.aux, 1e-5 * (1e-9 + expected.aux));
  double mtp = 0;
  for (const Statistics::Mtp& module : found.mtp) {
    mtp += module.loss_sum / static_cast<double>((T - 1) * config.model.mtp_depth);
    z += config.train.z_loss * config.train.mtp_loss_weight * module.lse_square_sum /
         static_cast<double>((T - 1) * config.model.mtp_depth);
  }
  EXPECT_EQ(std::ssize(found.mtp), config.model.mtp_depth);
  EXPECT_NEAR(mtp, expected.mtp_mean, 2e-6 * expected.mtp_mean);
  EXPECT_EQ(found.indexer_loss_sum.has_value(), config.num_indexers() > 0);
  EXPECT_NEAR(config.train.indexer_loss_weight * found.indexer_loss_sum.value_or(0) / static_cast<double>(T),
              expected.indexer, 1e-5 * expected.indexer);
  EXPECT_NEAR(z, expected.router_z + expected.output_z, 1e-5 * (1e-9 + expected.router_z + expected.output_z));

  if (config.model.norm == NormKind::batchnorm) expect_averages(engine, model);

  // For each parameter: the derivative along a random direction, and those of its first and last
  // elements.
  for (const ParamSpec& spec : engine.store().specs()) {
    if (spec.frozen) continue;
    const View grad = engine.store().get(spec.name).grad;
    Numbers& w = parameters[spec.name];
    const RandomStream random(5, spec.name);
    const Index n = grad.elements();
    const auto check = [&](const Numbers& direction, const std::string& what) {
      expect_derivative(
          grad, w, direction,
          [&] {
            const reference::ModelLoss loss = model.loss(parameters, true);
            return is_of_indexer(spec.name) ? loss.indexer : loss.total();
          },
          1e-4, spec.name + ", " + what);
    };
    for (int trial = 0; trial < 2; ++trial) {
      Numbers direction(n);
      for (Index i = 0; i < n; ++i) direction[i] = random.normal(trial * n + i);
      check(direction, "random direction");
    }
    for (Index i : {Index{0}, n - 1}) {
      Numbers direction(n, 0.0);
      direction[i] = 1;
      check(direction, "element " + std::to_string(i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configs, WholeModel,
    testing::Values(
        Case{"mixtral", {}}, Case{"drop_by_choice", {"--moe.drop_order=choice"}},
        Case{"drop_by_probability", {"--moe.drop_order=probability"}},
        Case{"rank_scopes", {"--moe.capacity_scope=rank", "--moe.aux_scope=micro_batch"}},
        Case{"global_aux", {"--moe.aux_scope=global_batch", "--moe.capacity_factor=0"}},
        Case{"balance_of_all_layers", {"--moe.aux_layers=joint", "--moe.aux_scope=global_batch", "--model.layers=3"}},
        Case{"balance_of_all_sigmoid_layers_computed_again",
             {"--moe.aux_layers=joint", "--moe.aux_scope=micro_batch", "--model.layers=4", "--moe.first_dense=1",
              "--moe.score=sigmoid", "--moe.aux_probability=score", "--train.recompute=block",
              "--moe.shared_experts=1"}},
        Case{"mtp", {"--model.mtp_depth=1"}},
        Case{"mtp_two_modules_tied",
             {"--model.mtp_depth=2", "--model.tie_embeddings=true", "--train.mtp_loss_weight=0.8", "--train.z_loss=0.1",
              "--model.scale_embedding=true"}},
        Case{"mtp_deepseek_computed_again",
             {"--model.mtp_depth=2", "--model.kv_heads=0", "--model.kv_lora_rank=6", "--model.q_lora_rank=5",
              "--model.qk_rope_head_dim=2", "--moe.first_dense=1", "--moe.score=sigmoid", "--moe.shared_experts=1",
              "--train.recompute=block"}},
        Case{"mtp_dense_layernorm_post",
             {"--model.mtp_depth=1", "--moe.experts=0", "--model.norm=layernorm", "--model.norm_position=post",
              "--model.bias=mlp", "--model.norm_bias=true", "--model.position=learned", "--model.embedding_norm=true",
              "--train.recompute=experts"}},
        Case{"mtp_joint_balance",
             {"--model.mtp_depth=3", "--moe.aux_layers=joint", "--moe.aux_scope=global_batch",
              "--train.recompute=attention"}},
        Case{"mtp_every_second_layer",
             {"--model.mtp_depth=2", "--model.layers=3", "--moe.every=2", "--train.recompute=norms"}},
        Case{"indexed", indexed},
        Case{"indexed_all_keys", with(indexed, {"--model.index_topk=7", "--train.indexer_loss_weight=0.5"})},
        Case{"indexed_sinks_cap_computed_again",
             with(indexed, {"--model.attention_sinks=true", "--model.attention_softcap=1.5", "--model.qk_norm=true",
                            "--model.rope_fraction=0.7", "--train.recompute=attention"})},
        Case{"indexed_pattern_without_rope_computed_again",
             with(indexed, {"--model.attention=causal", "--model.pattern=a,b", "--attention.a.attention=indexed",
                            "--model.position=none", "--train.recompute=norms"})},
        Case{"indexed_latent",
             with(indexed, {"--model.kv_heads=0", "--model.kv_lora_rank=6", "--model.q_lora_rank=5",
                            "--model.qk_rope_head_dim=2", "--model.rope_pairs=interleaved", "--model.mtp_depth=1"})},
        Case{"indexed_latent_without_one_of_queries_computed_again",
             with(indexed, {"--model.kv_heads=0", "--model.kv_lora_rank=6", "--model.qk_rope_head_dim=4",
                            "--train.recompute=block"})},
        Case{"indexed_warmup", with(indexed, {"--train.indexer=warmup", "--train.indexer_loss_weight=2"})},
        Case{"indexed_latent_warmup_computed_again",
             with(indexed, {"--train.indexer=warmup", "--model.kv_heads=0", "--model.kv_lora_rank=6",
                            "--model.q_lora_rank=5", "--model.qk_rope_head_dim=2", "--train.recompute=norms"})},
        Case{"hashed", hashed},
        Case{"hashed_factors_biases_both_sides_computed_again",
             with(hashed, {"--model.kind=encoder", "--model.lsh_buckets=2,2", "--model.lsh_chunks_after=1",
                           "--model.bias=all", "--model.norm=layernorm", "--train.recompute=attention"})},
        Case{"hashed_one_bucket_scaled_computed_again",
             with(hashed, {"--model.lsh_buckets=1", "--model.attention_scale=1.7", "--train.recompute=block"})},
        Case{"hashed_one_chunk", with(hashed, {"--model.lsh_chunk_length=12", "--train.recompute=norms"})},
        Case{"reformer",
             with(hashed, {"--train.reversible=true", "--model.reversible_output=concat", "--model.pattern=local,lsh",
                           "--model.layers=3", "--attention.local.attention=local", "--model.local_chunk_length=4",
                           "--model.position=axial", "--model.axial_shape=4,3", "--model.axial_widths=5,7",
                           "--moe.experts=0", "--model.norm=layernorm", "--model.bias=mlp", "--model.norm_bias=true",
                           "--model.output_bias=true", "--model.ffn=relu"})},
        Case{"reversible_hashed_experts", with(hashed, {"--train.reversible=true", "--model.layers=3"})},
        Case{"local_chunks", {"--model.attention=local", "--model.local_chunk_length=2"}},
        Case{"local_chunks_two_before_computed_again",
             {"--model.attention=local", "--model.local_chunk_length=2", "--model.local_chunks_before=2",
              "--train.recompute=attention"}},
        Case{"local_chunk_alone",
             {"--model.attention=local", "--model.local_chunk_length=3", "--model.local_chunks_before=0"}},
        Case{"axial_positions", {"--model.position=axial", "--model.axial_shape=2,4", "--model.axial_widths=9,3"}},
        Case{"switch_top1", {"--moe.top_k=1", "--moe.renormalize=false"}},
        Case{"sigmoid_shared_groups",
             {"--moe.experts=6", "--moe.score=sigmoid", "--moe.scale=2.5", "--moe.shared_experts=2", "--moe.groups=3",
              "--moe.topk_groups=2"}},
        Case{"deepseek_v3_balance",
             {"--moe.experts=6", "--moe.score=sigmoid", "--moe.aux_probability=score", "--moe.aux_loss=0.5",
              "--moe.z_loss=0.02"}},
        Case{"sqrt_softplus_balanced_by_score",
             {"--moe.score=sqrt_softplus", "--moe.aux_probability=score", "--moe.aux_scope=global_batch"}},
        Case{"sqrt_softplus_groups_by_best",
             {"--moe.experts=6", "--moe.score=sqrt_softplus", "--moe.groups=3", "--moe.topk_groups=2",
              "--moe.group_score=max"}},
        Case{"noisy", {"--moe.choice=noisy", "--moe.noise=0.7", "--train.seed=5"}},
        Case{"learned_noise", {"--moe.choice=noisy", "--moe.noise=1", "--moe.learned_noise=true"}},
        Case{"learned_noise_sigmoid_jitter_bias",
             {"--moe.choice=noisy", "--moe.noise=0.6", "--moe.learned_noise=true", "--moe.score=sigmoid",
              "--moe.jitter=0.2", "--moe.router_bias=true"}},
        Case{"jitter", {"--moe.jitter=0.4", "--moe.top_k=1", "--moe.renormalize=false", "--train.seed=5"}},
        Case{"jitter_and_noise_computed_again",
             {"--moe.jitter=0.2", "--moe.choice=noisy", "--moe.noise=0.7", "--train.recompute=block"}},
        Case{"balanced", {"--moe.choice=balanced", "--moe.score=sigmoid"}},
        Case{"sampled_and_computed_again", {"--moe.choice=sampled", "--train.recompute=block"}},
        Case{"expert_biases_relu", {"--moe.bias=true", "--moe.router_bias=true", "--model.ffn=relu"}},
        Case{"glam", {"--moe.ffn=gelu", "--model.ffn=geglu", "--moe.every=2", "--moe.shared_experts=1"}},
        Case{"swish_beta", {"--model.ffn=silu", "--model.swish_beta=1.5", "--moe.every=2"}},
        Case{"gpt_oss",
             {"--moe.bias=true", "--moe.router_bias=true", "--model.ffn=swiglu_clamped", "--model.ffn_clamp=0.6",
              "--model.bias=true", "--model.window=3"}},
        Case{"qwen2_moe",
             {"--moe.shared_experts=1", "--moe.shared_d_ff=7", "--moe.shared_gate=true", "--moe.renormalize=false",
              "--moe.capacity_factor=0"}},
        Case{"all_experts", {"--moe.top_k=5"}}, Case{"dense", {"--moe.experts=0"}},
        Case{"dense_first_then_every_second", {"--model.layers=4", "--moe.first_dense=1", "--moe.every=2"}},
        Case{"layernorm_bias_gelu_tied",
             {"--model.norm=layernorm", "--model.bias=true", "--model.ffn=gelu", "--model.tie_embeddings=true"}},
        Case{"no_norm_relu2_nope", {"--model.norm=none", "--model.ffn=relu2", "--model.position=none"}},
        Case{"batchnorm", {"--model.norm=batchnorm"}},
        // A constant that is added to the residual stream has no gradient, since batch norms
        // subtract the mean: these cases have no such biases.
        Case{"batchnorm_biases_computed_again",
             {"--model.norm=batchnorm", "--model.norm_bias=true", "--train.recompute=block"}},
        Case{"batchnorm_both_positions_computed_again",
             {"--model.norm=batchnorm", "--model.norm_position=both", "--model.embedding_norm=true",
              "--model.norm_eps=1e-3", "--train.recompute=block"}},
        Case{"batchnorm_post_computed_again",
             {"--model.norm=batchnorm", "--model.norm_position=post", "--moe.experts=0", "--model.norm_bias=true",
              "--train.recompute=norms"}},
        Case{"batchnorm_residual_of_norms",
             {"--model.norm=batchnorm", "--model.norm_position=residual", "--model.layers=3", "--moe.every=2"}},
        Case{"batchnorm_output", {"--model.norm=batchnorm", "--model.norm_position=output"}},
        Case{"batchnorm_parallel_shared", {"--model.norm=batchnorm", "--model.parallel_block=true"}},
        Case{"batchnorm_encoder_output_transform",
             {"--model.norm=batchnorm", "--model.kind=encoder", "--model.output_transform=true",
              "--model.embedding_norm=true", "--moe.experts=0", "--train.recompute=attention"}},
        Case{"batchnorm_mtp_computed_again",
             {"--model.norm=batchnorm", "--model.mtp_depth=2", "--train.recompute=norms", "--moe.first_dense=1"}},
        Case{"batchnorm_of_the_embedding_mtp",
             {"--model.norm=batchnorm", "--model.embedding_norm=true", "--model.mtp_depth=2"}},
        Case{"batchnorm_reversible",
             {"--model.norm=batchnorm", "--train.reversible=true", "--moe.experts=0", "--model.layers=3",
              "--model.norm_bias=true"}},
        Case{"qk_norm", {"--model.qk_norm=true"}},
        Case{"head_layernorm_of_queries_and_keys", {"--model.qk_norm=head_layernorm"}},
        Case{"head_layernorm_parallel_interleaved_kinds",
             {"--model.qk_norm=head_layernorm", "--model.norm=layernorm", "--model.parallel_block=true",
              "--model.rope_pairs=interleaved", "--model.norm_offset=true", "--model.pattern=a,b",
              "--attention.b.position=none"}},
        Case{"norms_with_an_offset",
             {"--model.norm_offset=true", "--model.qk_norm=head", "--model.norm_position=both",
              "--model.embedding_norm=true"}},
        Case{"layernorms_with_an_offset_whole_qk_norm",
             {"--model.norm_offset=true", "--model.norm=layernorm", "--model.norm_bias=true", "--model.qk_norm=whole"}},
        Case{"clip_qkv", {"--model.clip_qkv=0.4", "--model.bias=qkv"}},
        Case{"clip_qkv_whole_qk_norm_kinds",
             {"--model.clip_qkv=0.8", "--model.qk_norm=whole", "--model.rope_pairs=interleaved", "--model.pattern=a,b",
              "--attention.b.clip_qkv=0", "--attention.b.position=none"}},
        Case{"qk_norm_without_positions", {"--model.qk_norm=true", "--model.position=none"}},
        Case{"softcaps_window_mqa_part_rope",
             {"--model.attention_softcap=3", "--model.output_softcap=4", "--model.window=3", "--model.kv_heads=1",
              "--model.rope_fraction=0.7", "--train.z_loss=0.01"}},
        Case{"post_norm", {"--model.norm_position=post"}}, Case{"norms_on_both_sides", {"--model.norm_position=both"}},
        Case{"output_norm", {"--model.norm_position=output"}},
        Case{"residual_of_norms", {"--model.norm_position=residual", "--model.layers=3", "--model.norm=layernorm"}},
        Case{"falcon_rw", {"--model.position=alibi", "--model.alibi_scale=0.3", "--model.norm=layernorm"}},
        Case{"attention_biases", {"--model.bias=attention", "--model.rope_theta=10"}},
        Case{"dense_layers", {"--model.layers=4", "--moe.dense_layers=1, 2"}},
        Case{"parallel_shared_norm", {"--model.parallel_block=true"}},
        Case{"parallel_two_norms", {"--model.parallel_block=true", "--model.parallel_norms=2"}},
        Case{"learned_positions", {"--model.position=learned"}},
        Case{"sinusoidal_positions", {"--model.position=sinusoidal"}},
        Case{"scaled_embedding_with_norm", {"--model.scale_embedding=true", "--model.embedding_norm=true"}},
        Case{"granite",
             {"--model.embedding_scale=3", "--model.residual_scale=0.3", "--model.attention_scale=0.2",
              "--model.logit_scale=0.4", "--model.tie_embeddings=true"}},
        Case{"residual_scale_of_parallel_sublayers_computed_again",
             {"--model.residual_scale=0.6", "--model.parallel_block=true", "--model.norm_position=both",
              "--model.scale_embedding=true", "--model.embedding_scale=0.5", "--train.recompute=norms"}},
        Case{"residual_scale_post_norm", {"--model.residual_scale=1.7", "--model.norm_position=post"}},
        Case{"residual_scale_of_norms_computed_again",
             {"--model.residual_scale=0.6", "--model.norm_position=residual", "--train.recompute=block"}},
        Case{"residual_scale_output_norm_mtp",
             {"--model.residual_scale=0.6", "--model.norm_position=output", "--model.mtp_depth=1",
              "--model.embedding_scale=2"}},
        Case{"qk_norm_after_rope", {"--model.qk_norm=head", "--model.qk_norm_after_rope=true"}},
        Case{"head_layernorm_after_yarn_computed_again",
             {"--model.qk_norm=head_layernorm", "--model.qk_norm_after_rope=true", "--model.rope_pairs=interleaved",
              "--model.rope_scaling=yarn", "--model.rope_factor=4", "--model.rope_original_length=3",
              "--model.pattern=a,b", "--attention.b.position=none", "--train.recompute=attention"}},
        Case{"xielu", {"--model.ffn=xielu", "--moe.experts=0", "--model.bias=mlp"}},
        Case{"xielu_beside_experts_computed_again",
             {"--model.ffn=xielu", "--moe.ffn=swiglu", "--moe.every=2", "--train.recompute=experts"}},
        Case{"logit_scale", {"--model.logit_scale=0.3", "--train.z_loss=0.01", "--model.output_softcap=2"}},
        Case{"output_bias", {"--model.output_bias=true"}},
        Case{"mup", {"--model.mup=true", "--model.mup_base_width=5", "--model.logit_scale=2"}},
        Case{"output_bias_tied_scaled_capped",
             {"--model.output_bias=true", "--model.tie_embeddings=true", "--model.logit_scale=0.4",
              "--model.output_softcap=2", "--train.z_loss=0.01"}},
        Case{"qkv_bias", {"--model.bias=qkv"}},
        Case{"mlp_and_norm_bias",
             {"--model.bias=mlp", "--model.norm=layernorm", "--model.norm_bias=true", "--moe.every=2"}},
        Case{"biases_but_of_norms",
             {"--model.bias=all", "--model.norm=layernorm", "--model.norm_bias=false", "--moe.every=2"}},
        Case{"interleaved_pairs", {"--model.rope_pairs=interleaved", "--model.rope_fraction=0.7"}},
        Case{"interleaved_pairs_qk_norm", {"--model.rope_pairs=interleaved", "--model.qk_norm=head"}},
        Case{"reversible_dense",
             {"--train.reversible=true", "--moe.experts=0", "--model.layers=3", "--model.norm_position=both",
              "--model.norm=layernorm", "--model.bias=all", "--model.attention_softcap=3"}},
        Case{"reversible_drops_noise_jitter_shared",
             {"--train.reversible=true", "--model.layers=3", "--moe.drop_order=probability", "--moe.choice=noisy",
              "--moe.noise=0.7", "--moe.jitter=0.1", "--moe.shared_experts=1", "--moe.every=2"}},
        Case{"reversible_joint_balance_learned_noise_scaled",
             {"--train.reversible=true", "--moe.aux_layers=joint", "--moe.aux_scope=global_batch", "--moe.choice=noisy",
              "--moe.noise=1", "--moe.learned_noise=true", "--model.residual_scale=0.6",
              "--model.norm_position=output"}},
        Case{"reversible_encoder_without_first_norm",
             {"--train.reversible=true", "--model.kind=encoder", "--model.first_norm=false",
              "--model.embedding_norm=true"}},
        Case{"linear_rope_scaling", {"--model.rope_scaling=linear", "--model.rope_factor=3"}},
        Case{"yarn_sharpens_attention",
             {"--model.rope_scaling=yarn", "--model.rope_factor=4", "--model.rope_original_length=3",
              "--model.rope_beta_fast=2", "--model.rope_beta_slow=0.1", "--model.qk_norm=whole"}},
        Case{"qk_norm_over_all_heads", {"--model.qk_norm=whole"}},
        Case{"qk_norm_over_all_heads_without_positions", {"--model.qk_norm=whole", "--model.position=none"}},
        // Combinations like the original transformer, Gemma, GPT-J and OLMo 2. If keys are not
        // rotated, the gradient of their bias would be mere rounding without the soft cap.
        Case{"post_sinusoidal_layernorm_biases_scaled",
             {"--model.norm_position=post", "--model.position=sinusoidal", "--model.norm=layernorm", "--model.bias=all",
              "--model.scale_embedding=true", "--model.ffn=relu", "--moe.every=2", "--model.tie_embeddings=true",
              "--model.attention_softcap=3"}},
        Case{"both_scaled_softcaps_pattern",
             {"--model.norm_position=both", "--model.scale_embedding=true", "--model.attention_softcap=3",
              "--model.output_softcap=4", "--model.pattern=local,global", "--attention.local.window=3",
              "--attention.global.rope_scaling=linear", "--attention.global.rope_factor=8",
              "--model.tie_embeddings=true", "--model.qk_norm=head"}},
        Case{"parallel_both_interleaved_part_biases",
             {"--model.parallel_block=true", "--model.norm_position=both", "--model.rope_pairs=interleaved",
              "--model.rope_fraction=0.7", "--model.norm=layernorm", "--model.bias=mlp", "--model.norm_bias=true",
              "--moe.first_dense=1", "--model.logit_scale=0.5"}},
        Case{"parallel_output_learned_embedding_norm",
             {"--model.parallel_block=true", "--model.norm_position=output", "--model.position=learned",
              "--model.embedding_norm=true", "--model.bias=all", "--model.norm=layernorm",
              "--model.attention_softcap=3"}},
        Case{"output_norm_whole_qk_norm_shared_experts",
             {"--model.norm_position=output", "--model.qk_norm=whole", "--moe.shared_experts=1", "--model.kv_heads=4"}},
        Case{"alibi", {"--model.position=alibi"}},
        Case{"alibi_of_six_heads_with_window",
             {"--model.position=alibi", "--model.heads=6", "--model.kv_heads=3", "--model.window=4"}},
        Case{"t5", {"--model.position=t5", "--model.t5_buckets=5", "--model.t5_max_distance=6"}},
        Case{"t5_of_each_layer",
             {"--model.position=t5", "--model.t5_shared=false", "--model.t5_buckets=4", "--model.t5_max_distance=5"}},
        Case{"attention_scale",
             {"--model.attention_scale=0.9", "--model.pattern=a,b", "--attention.b.attention_scale=0.2"}},
        Case{"sinks", {"--model.attention_sinks=true", "--model.window=3"}},
        Case{"sinks_with_softcap_mqa",
             {"--model.attention_sinks=true", "--model.attention_softcap=2", "--model.kv_heads=1"}},
        Case{"strided", {"--model.attention=strided", "--model.attention_stride=3"}},
        Case{"fixed", {"--model.attention=fixed", "--model.attention_stride=3", "--model.attention_summary=2"}},
        Case{"longformer", {"--model.attention=longformer", "--model.window=2", "--model.global_tokens=2"}},
        Case{"encoder", {"--model.kind=encoder"}},
        Case{"encoder_windows",
             {"--model.kind=encoder", "--model.pattern=a,b", "--attention.a.window=3",
              "--attention.b.attention_sinks=true", "--train.recompute=attention"}},
        Case{"encoder_longformer",
             {"--model.kind=encoder", "--model.attention=longformer", "--model.window=2", "--model.global_tokens=1",
              "--train.recompute=block"}},
        Case{"encoder_longformer_global_projections",
             {"--model.kind=encoder", "--model.attention=longformer", "--model.window=2", "--model.global_tokens=2",
              "--model.global_projections=true", "--model.position=learned", "--model.bias=qkv",
              "--model.attention_softcap=2", "--train.recompute=norms"}},
        Case{"encoder_latent",
             {"--model.kind=encoder", "--model.kv_heads=0", "--model.kv_lora_rank=5", "--model.qk_rope_head_dim=4"}},
        Case{"encoder_like_bert",
             {"--model.kind=encoder", "--model.norm_position=post", "--model.position=learned", "--model.segments=2",
              "--model.embedding_norm=true", "--model.norm=layernorm", "--model.bias=mlp", "--model.norm_bias=true",
              "--model.ffn=gelu", "--model.output_transform=true", "--model.output_bias=true",
              "--model.tie_embeddings=true"}},
        Case{"encoder_segments_untied",
             {"--model.kind=encoder", "--model.segments=3", "--model.segment_token=4", "--model.output_bias=true"}},
        Case{"encoder_like_modernbert",
             {"--model.kind=encoder", "--model.first_norm=false", "--model.embedding_norm=true",
              "--model.norm=layernorm", "--model.norm_bias=false", "--model.ffn=geglu", "--model.pattern=a,b",
              "--attention.a.rope_theta=100", "--attention.a.window=2", "--model.output_transform=true",
              "--model.output_bias=true", "--model.tie_embeddings=true", "--train.recompute=norms"}},
        Case{"mixed_scores_and_patterns",
             {"--model.layers=5",
              "--model.pattern=a,b,c,d,e",
              "--model.t5_buckets=4",
              "--model.t5_max_distance=6",
              "--attention.a.position=t5",
              "--attention.a.attention=fixed",
              "--attention.a.attention_stride=2",
              "--attention.a.attention_summary=1",
              "--attention.b.position=alibi",
              "--attention.b.attention=strided",
              "--attention.b.attention_stride=2",
              "--attention.b.attention_sinks=true",
              "--attention.c.position=t5",
              "--attention.c.attention_sinks=true",
              "--attention.c.qk_norm=true",
              "--attention.c.window=5",
              "--attention.d.attention=longformer",
              "--attention.d.window=2",
              "--attention.d.attention_sinks=true",
              "--attention.e.position=none",
              "--attention.e.attention_softcap=3"}},
        Case{"latent", {"--model.kv_heads=0", "--model.kv_lora_rank=5", "--model.qk_rope_head_dim=4"}},
        Case{"latent_of_queries_too",
             {"--model.kv_heads=0", "--model.kv_lora_rank=5", "--model.q_lora_rank=7", "--model.qk_rope_head_dim=4",
              "--model.v_head_dim=3", "--model.latent_norm_eps=0.1", "--model.rope_pairs=interleaved"}},
        Case{"latent_scaled_yarn_shared_experts",
             {"--model.kv_heads=0", "--model.kv_lora_rank=9", "--model.q_lora_rank=4", "--model.qk_rope_head_dim=6",
              "--model.v_head_dim=8", "--model.head_dim=5", "--model.attention_scale=0.4", "--model.rope_scaling=yarn",
              "--model.rope_factor=4", "--model.rope_original_length=3", "--model.rope_beta_fast=2",
              "--model.rope_beta_slow=0.1", "--model.rope_attention_factor=1", "--moe.shared_experts=1",
              "--moe.score=sigmoid", "--moe.first_dense=1", "--model.norm_position=both"}},
        Case{"latent_of_several_kinds",
             {"--model.layers=3", "--model.pattern=a,b,c", "--model.kv_heads=0", "--model.kv_lora_rank=6",
              "--model.qk_rope_head_dim=2", "--model.q_lora_rank=3", "--attention.a.window=3",
              "--attention.a.attention_sinks=true", "--attention.b.position=t5", "--attention.b.attention_softcap=0",
              "--model.t5_buckets=5", "--model.t5_max_distance=6", "--attention.c.position=none",
              "--attention.c.attention_softcap=2", "--model.parallel_block=true"}},
        Case{"mixed_layers",
             {"--model.layers=4", "--model.pattern=local*2,global,narrow", "--attention.local.window=3",
              "--attention.local.rope_theta=50", "--attention.local.qk_norm=true", "--attention.global.position=none",
              "--attention.global.attention_softcap=3", "--attention.narrow.rope_fraction=0.7"}}),
    [](const auto& test) { return test.param.name; });

// Experts that the first router chose for each token.
struct Choices {
  Engine& engine;
  std::vector<std::int32_t> experts{};
  explicit Choices(Engine& e) : engine(e) {
    engine.set_routing_hook([this](const RoutingView& r) {
      std::vector<std::int32_t> of_layer(static_cast<std::size_t>(r.experts.elements()));
      engine.device().to_host(r.experts, of_layer.data());
      experts.insert(experts.end(), of_layer.begin(), of_layer.end());
    });
  }
  std::vector<std::int32_t> take() { return std::exchange(experts, {}); }
};

// Random numbers depend only on the indices of the tokens in the run. Evaluation draws none.
TEST(RandomChoice, DependsOnlyOnTokenIndices) {
  for (const std::string choice : {"noisy", "sampled"}) {
    const Config config = parse_config(
        base, "test",
        {"--model.layers=1", "--moe.choice=" + choice, choice == "noisy" ? "--moe.noise=2" : "--moe.noise=0"});
    const auto self = make_comm_self();
    Engine engine(config, 11, make_cpu(), single_mesh(*self), true);
    engine.store().initialize(7);
    Choices choices(engine);
    const std::vector<std::int32_t> ids(6 * 7, 3);
    const auto train = [&](Index first, Index sequences) {
      const auto some = std::span(ids).first(static_cast<std::size_t>(sequences * 7));
      engine.forward_backward({sequences, 7, some, some, 42, 6, 1, first});
      return choices.take();
    };
    const std::vector<std::int32_t> all = train(10, 6), first = train(10, 2), rest = train(12, 4);
    std::vector<std::int32_t> both = first;
    both.insert(both.end(), rest.begin(), rest.end());
    EXPECT_EQ(both, all);
    EXPECT_NE(train(16, 6), all);
    engine.evaluate({6, 7, ids, ids}, false);
    const std::vector<std::int32_t> evaluated = choices.take();
    EXPECT_NE(evaluated, all);
    engine.evaluate({6, 7, ids, ids, 1, 1, 1, 16}, false);
    EXPECT_EQ(choices.take(), evaluated);
  }
}

// Token n of the run chooses experts n, n + 1, ... in this order, so that all experts are chosen
// equally often.
TEST(BalancedChoice, ChoosesExpertsRoundRobin) {
  const Config config = parse_config(base, "test", {"--model.layers=1", "--moe.choice=balanced", "--moe.experts=7"});
  const auto self = make_comm_self();
  Engine engine(config, 11, make_cpu(), single_mesh(*self), true);
  engine.store().initialize(7);
  Choices choices(engine);
  const std::vector<std::int32_t> ids(3 * 7, 3);
  engine.forward_backward({3, 7, ids, ids, 42, 6, 1, 10});
  std::vector<std::int32_t> expected;
  for (Index token = 10 * 7; token < 13 * 7; ++token)
    for (Index choice = 0; choice < 2; ++choice) expected.push_back(static_cast<std::int32_t>((token + choice) % 7));
  EXPECT_EQ(choices.take(), expected);
}

// With a group limit, the token chooses groups by the same rule, and stays within them.
TEST(BalancedChoice, StaysWithinGroups) {
  const Config config = parse_config(base, "test",
                                     {"--model.layers=1", "--moe.choice=balanced", "--moe.experts=6", "--moe.groups=3",
                                      "--moe.topk_groups=1", "--moe.group_score=max"});
  const auto self = make_comm_self();
  Engine engine(config, 11, make_cpu(), single_mesh(*self), true);
  engine.store().initialize(7);
  Choices choices(engine);
  const std::vector<std::int32_t> ids(3 * 7, 3);
  engine.forward_backward({3, 7, ids, ids, 42, 6, 1, 0});
  std::vector<std::int32_t> expected;
  for (std::int32_t token = 0; token < 3 * 7; ++token) {
    // The second expert of an odd token would be in the next group.
    const std::int32_t first = token % 6;
    expected.insert(expected.end(), {first, first % 2 == 0 ? first + 1 : first - 1});
  }
  EXPECT_EQ(choices.take(), expected);
}

// A rank without sequences still has experts that other ranks need.
TEST(EmptyRank, TrainsWithoutSequences) {
  for (const char* aux : {"sequence", "micro_batch", "global_batch"}) {
    std::vector<std::string> settings = {std::string("--moe.aux_scope=") + aux,
                                         "--moe.choice=sampled",
                                         "--moe.bias=true",
                                         "--moe.shared_experts=1",
                                         "--moe.shared_gate=true",
                                         "--moe.router_bias=true"};
    if (aux != std::string("sequence"))
      settings.push_back("--moe.aux_layers=joint");
    else
      settings.insert(settings.end(), {"--model.kv_heads=0", "--model.kv_lora_rank=5", "--model.qk_rope_head_dim=2"});
    const Config config = parse_config(base, "test", settings);
    const auto self = make_comm_self();
    Engine engine(config, 11, make_cpu(), single_mesh(*self), true);
    engine.store().initialize(7);
    engine.forward_backward({0, 7, {}, {}, 7, 1, 1});
    const Statistics found = engine.take_statistics();
    EXPECT_EQ(found.loss_sum, 0);
    for (const RouterStats& s : found.layers) EXPECT_EQ(s.routed, std::vector<Index>(5, 0));
    for (const ParamSpec& spec : engine.store().specs()) {
      const View grad = engine.store().get(spec.name).grad;
      for (Index i = 0; i < grad.elements(); ++i) ASSERT_EQ(grad.f32()[i], 0) << spec.name;
    }
  }
}

// The planned bytes are known before allocation, and equal the allocated bytes.
TEST(Memory, PlanEqualsAllocation) {
  const std::vector<std::string> blocks[] = {
      {"--model.pattern=a,b", "--attention.a.position=t5", "--attention.a.attention_sinks=true",
       "--moe.aux_scope=global_batch", "--moe.aux_layers=joint"},
      {"--model.norm_position=both", "--model.qk_norm=whole", "--model.scale_embedding=true"},
      {"--model.norm_position=post", "--model.position=learned", "--model.embedding_norm=true"},
      {"--model.parallel_block=true", "--model.norm_position=output", "--model.position=sinusoidal"},
      {"--model.kv_heads=0", "--model.kv_lora_rank=6", "--model.q_lora_rank=3", "--model.qk_rope_head_dim=4"}};
  for (int i = 0; i < 6; ++i) {  // a MoE layer with each block, a dense one with the first
    const std::string experts = i < 5 ? "5" : "0";
    SCOPED_TRACE(i);
    // Dropless on one rank, so that the number of routed rows does not depend on the router. A step
    // has several micro-batches, so that weights are packed.
    std::vector<std::string> settings = blocks[i % 5];
    settings.insert(settings.end(),
                    {"--moe.capacity_factor=0", "--moe.experts=" + experts, "--train.micro_batch=3",
                     "--train.global_batch=6", "--moe.bias=true", "--moe.router_bias=true", "--moe.choice=sampled"});
    if (i < 5) settings.insert(settings.end(), {"--moe.shared_experts=1", "--moe.shared_gate=true"});
    // bf16 has master weights, and activations of half the size.
    if (i % 2 == 1) settings.push_back("--run.dtype=bf16");
    const Config config = parse_config(base, "test", settings);
    const Index V = 300;
    const MemoryPlan plan = plan_memory(config, V, Layout{}, 0, *make_cpu());
    const auto self = make_comm_self();
    Engine engine(config, V, make_cpu(), single_mesh(*self), true);
    engine.store().initialize(1);
    EXPECT_EQ(engine.store().allocated_bytes(), plan.parameters());
    EXPECT_GT(engine.store().packed_weights().bytes(), plan.gradients);
    const std::vector<std::int32_t> ids(21, 3);
    engine.forward_backward({3, 7, ids, ids, 21, 3, 1});
    EXPECT_EQ(engine.saved().peak() + engine.scratch().peak(), plan.activations());
    EXPECT_EQ(engine.saved().in_use(), 0);
    EXPECT_EQ(engine.scratch().in_use(), 0);
  }
}

// The plan counts saved activations once for each micro-batch in flight.
TEST(Memory, CountsTheMicroBatchesInFlight) {
  const auto cpu = make_cpu();
  for (const char* recompute : {"--train.recompute=none", "--train.recompute=norms", "--train.recompute=experts",
                                "--train.recompute=attention", "--train.recompute=block"}) {
    const Config config = parse_config(base, "test", {"--train.micro_batch=3", recompute});
    const Index V = 300;
    const MemoryPlan one = plan_memory(config, V, Layout{}, 0, *cpu);
    for (const Index slots : {1, 2, 4}) {
      const auto self = make_comm_self();
      Engine engine(config, V, make_dry(cpu.get()), single_mesh(*self), true, {}, slots);
      const std::vector<std::int32_t> ids(21, 3);
      for (const auto& [direction, micro] : one_forward_one_backward(5, slots))
        if (direction == ScheduledPass::Direction::forward)
          engine.forward({3, 7, ids, ids, 105, 15, 5}, micro % slots);
        else
          engine.backward(micro % slots);
      Index saved = 0;
      for (Index slot = 0; slot < slots; ++slot) saved += engine.saved(slot).peak();
      const MemoryPlan plan = plan_memory(config, V, Layout{}, 0, *cpu, slots);
      EXPECT_EQ(plan.saved, saved) << slots;
      EXPECT_EQ(plan.saved, slots * one.saved) << slots;
      EXPECT_EQ(plan.scratch, engine.scratch().peak()) << slots;
      EXPECT_EQ(plan.scratch, one.scratch) << slots;
      EXPECT_EQ(plan.total(), one.total() + (slots - 1) * one.saved) << slots;
      const ArenaSizes arenas = arena_sizes(config, V, Layout{}, 0, *cpu, 1, false, slots);
      EXPECT_EQ(arenas.total(slots), plan.activations()) << slots;
    }
  }
}

TEST(Memory, IsDividedByZero1AndExpertParallelism) {
  const Config config = parse_config(base, "test", {"--moe.experts=8"});
  Index optimizer = 0, experts = 0;
  const std::vector<ParamSpec> specs = param_specs(config, 300);
  Index all = 0, all_experts = 0;
  for (const ParamSpec& s : specs) {
    all += s.shape.elements();
    if (s.summed() == Axis::edp) all_experts += s.shape.elements();
  }
  const Layout layout{4, 1, 2, 1};
  for (int r = 0; r < 4; ++r) {
    const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, r));
    for (const GroupLayout& g : flat.groups)
      for (const OwnedRange& run : owned_ranges(g)) optimizer += run.local.size();
    for (const ParamSlice& p : flat.groups.back().slices) experts += p.box.elements();
  }
  // The optimizer state of every parameter is on exactly one rank.
  EXPECT_EQ(optimizer, all);
  EXPECT_EQ(experts, 2 * all_experts);  // edp = 2 copies of the experts on 4 ranks
}

}  // namespace
}  // namespace sy
