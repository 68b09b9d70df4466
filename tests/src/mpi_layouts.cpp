// Every layout is compared with one rank, step by step. This is the product's most important rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "src/config/layout.h"
#include "src/data/masking.h"
#include "src/evaluate/evaluate.h"
#include "src/optimizers/update_rule.h"
#include "src/params/block_specs.h"
#include "src/train/trainer.h"
#include "tests/mpi_world.h"
#include "tests/src/box_index.h"
#include "tests/src/two_domains.h"

namespace sy {
namespace {

using test::make_dataset;
using test::tested_device;
using test::world;

// Two models test sizes that are not powers of two, too: 4 heads, 2 kv heads and 8 experts; 6 heads
// and 6 experts.
constexpr const char* eight = R"(
[model]
layers = 3
d_model = 24
heads = 4
kv_heads = 2
seq_len = 20
d_ff = 40
[moe]
experts = 8
top_k = 2
first_dense = 1
d_ff = 20
capacity_factor = 1.0
aux_loss = 0.05
z_loss = 0.01
[train]
steps = 20
global_batch = 8
micro_batch = 1
lr = 5e-3
min_lr = 1e-3
warmup = 4
)";
constexpr const char* six = R"(
[model]
layers = 2
d_model = 24
heads = 6
seq_len = 21
d_ff = 42
[moe]
experts = 6
top_k = 2
d_ff = 18
capacity_factor = 0.8
aux_loss = 0.05
z_loss = 0.01
[train]
steps = 20
global_batch = 12
micro_batch = 2
lr = 5e-3
min_lr = 1e-3
warmup = 4
)";

using enum Recompute;

struct Layouts {
  const char* model;
  int ranks, tp, ep, etp, micro_batch;
  Recompute recompute = none;
  int node = 1;
};
const Layouts layout_cases[] = {
    {eight, 1, 1, 1, 1, 2},
    {eight, 1, 1, 1, 1, 8, block},
    {six, 1, 1, 1, 1, 4},
    {eight, 2, 1, 1, 1, 1},
    {eight, 2, 1, 2, 1, 2},
    {eight, 2, 2, 1, 1, 1},
    {eight, 2, 2, 2, 1, 4, norms},
    {eight, 2, 1, 1, 2, 1},
    {six, 2, 2, 1, 2, 6},
    {six, 3, 1, 3, 1, 2},
    {six, 3, 3, 1, 1, 4},
    {six, 3, 3, 3, 1, 2, attention},
    {six, 3, 1, 1, 3, 4},
    {eight, 4, 1, 4, 1, 1},
    {eight, 4, 1, 2, 1, 2},
    {eight, 4, 2, 2, 1, 1, experts},
    {eight, 4, 4, 4, 1, 2},
    {eight, 4, 4, 2, 2, 1, norms},
    {eight, 4, 2, 1, 4, 1, block},
    {six, 6, 1, 6, 1, 2},
    {six, 6, 2, 3, 1, 2},
    {six, 6, 3, 2, 3, 2, attention},
    {six, 6, 6, 3, 2, 4},
    {eight, 8, 1, 8, 1, 1},
    {eight, 8, 2, 8, 1, 1},
    {eight, 8, 4, 2, 4, 2, experts},
    // Hierarchical dispatch between nodes of two, three and four ranks, also with experts that are
    // split within a node.
    {eight, 4, 1, 4, 1, 1, none, 2},
    {eight, 4, 2, 2, 2, 1, experts, 2},
    {six, 6, 1, 6, 1, 2, none, 3},
    {eight, 8, 1, 8, 1, 1, none, 2},
    {eight, 8, 2, 4, 2, 2, block, 4},
};

// Copies on the host of the results of one router.
struct HostRouting {
  std::vector<float> logits, weights;
  std::vector<std::int32_t> experts, dispatch_mask;
  HostRouting(Device& backend, const RoutingView& r)
      : logits(r.logits.elements()),
        weights(r.weights.elements()),
        experts(r.experts.elements()),
        dispatch_mask(r.dispatch_mask.elements()) {
    backend.to_host(r.logits, logits.data());
    backend.to_host(r.weights, weights.data());
    backend.to_host(r.experts, experts.data());
    backend.to_host(r.dispatch_mask, dispatch_mask.data());
  }
};
// Smallest gap of a decision of the router. Within rounding, another order of summation may decide
// otherwise, and both are right. A gap is the distance of two scores: the last chosen and the best
// other one. If weights decide drops, it is also the distance of two weights of an expert in this
// rank's part of a sequence: the last accepted and the first dropped one.
double decision_gap(const Config& config, const HostRouting& r) {
  const Index E = config.moe.experts, k = config.moe.top_k, S = config.model.seq_len,
              T = static_cast<Index>(r.experts.size()) / k;
  double gap = 1;
  for (Index t = 0; t < T && k < E; ++t) {
    std::vector<double> z(r.logits.begin() + t * E, r.logits.begin() + (t + 1) * E);
    // Scores rise with logits. Differences of logits are relative differences of scores.
    std::sort(z.rbegin(), z.rend());
    gap = std::min(gap, z[k - 1] - z[k]);
  }
  if (config.moe.drop_order != DropOrder::probability) return gap;
  for (Index first = 0; first < T; first += S)
    for (Index e = 0; e < E; ++e) {
      double accepted = 2, dropped = -1;
      for (Index a = first * k; a < std::min(first + S, T) * k; ++a)
        if (r.experts[a] == e)
          (r.dispatch_mask[a] ? accepted = std::min<double>(accepted, r.weights[a])
                              : dropped = std::max<double>(dropped, r.weights[a]));
      gap = std::min(gap, accepted - dropped);
    }
  return gap;
}

struct History {
  std::vector<StepResult> steps;
  std::vector<double> gaps;                           // of each step, on this rank
  std::map<std::string, std::vector<float>> weights;  // this rank's slices, after the last step
  std::vector<float> averages;                        // of batch norms, after the last step
};

History train(Comm& comm, const Dataset& dataset, const Config& config) {
  // One rank alone is the reference. It runs on the CPU.
  const Layout layout = config.layout(comm.size());
  check_config_for_layout(config, layout);
  const std::string backend = &comm == &world() ? tested_device.backend : "cpu";
  Engine engine(config, dataset.vocab(), make_device(backend), make_mesh(comm, layout), true);
  engine.store().initialize(config.train.seed);
  const SampleStream samples = training_samples(dataset, config);
  Trainer trainer(engine, samples);
  History history;
  engine.set_routing_hook([&](const RoutingView& r) {
    history.gaps.back() = std::min(history.gaps.back(), decision_gap(config, HostRouting(engine.device(), r)));
  });
  for (Index i = 0; i < config.train.steps; ++i) {
    history.gaps.push_back(1);
    history.steps.push_back(trainer.step());
  }
  history.averages = engine.batch_norm_averages();
  if (config.dtype() != DType::f32) return history;
  engine.store().finish_all_gather();
  for (const ParamSpec& spec : engine.store().specs()) {
    const View w = engine.store().get(spec.name).weight;
    history.weights[spec.name].resize(w.elements());
    engine.device().to_host(w, history.weights[spec.name].data());
  }
  return history;
}

// Allowed differences between a layout on the device and one rank of the CPU in f32. `loss` and
// `norm` are relative. Below a gap of `scores` a decision may differ, after some steps of a model
// that learns fast. Decisions differ more often in bf16: then only the loss is compared.
struct Bounds {
  double loss, norm, parameters, scores;
  bool counts;
};
Bounds bounds() {
  if (tested_device.dtype == "bf16") return {2e-2, 0, 0, 0, false};
  if (tested_device.backend == "cuda") return {1e-4, 1e-4, 1e-3, 1e-5, true};
  return {1e-5, 1e-5, 2e-4, 3e-6, true};
}

struct Case {
  const char* name;
  std::vector<std::string> settings;
  bool placed = false;  // physical and logical experts differ
};

// Logical expert of each physical one. Each MoE layer has another order: reversed, then shifted by
// the index of the layer.
std::vector<std::vector<Index>> shifted_orders(const Config& config) {
  const Index E = config.moe.experts;
  std::vector<std::vector<Index>> orders(static_cast<std::size_t>(count_moe(block_specs(config))));
  for (std::size_t l = 0; l < orders.size(); ++l)
    for (Index physical = 0; physical < E; ++physical)
      orders[l].push_back((E - 1 - physical + static_cast<Index>(l)) % E);
  return orders;
}

const Case cases[] = {
    {"token", {}},
    {"choice", {"--moe.drop_order=choice"}},
    {"probability", {"--moe.drop_order=probability"}},
    {"dropless", {"--moe.capacity_factor=0"}},
    {"mup_batch_ramp",
     {"--model.mup=true", "--model.mup_base_width=8", "--train.batch_ramp=3:48, 6:24", "--train.steps=8",
      "--train.decay_embeddings=false"}},
    {"blend_schedule",
     {"--data.blend_schedule=3:domain1=1, 6:domain0=3 domain1=1", "--train.batch_ramp=5:48", "--train.steps=8"}},
    {"blend_schedule_pack",
     {"--data.blend_schedule=2:domain1=1, 5:domain0=1", "--data.documents=pack", "--train.steps=8"}},
    {"top4", {"--moe.top_k=4", "--moe.capacity_factor=1.2"}},
    {"balance_global_batch", {"--moe.aux_scope=global_batch"}},
    {"balance_micro_batch", {"--moe.aux_scope=micro_batch"}},
    {"balance_of_all_layers", {"--moe.aux_scope=global_batch", "--moe.aux_layers=joint", "--moe.aux_loss=0.1"}},
    {"placed", {"--moe.bias=true", "--moe.bias_update_rate=0.01"}, true},
    {"placed_balance_of_all_layers",
     {"--moe.aux_scope=global_batch", "--moe.aux_layers=joint", "--moe.drop_order=probability"},
     true},
    {"tight_shared_sigmoid_bias",
     {"--moe.capacity_factor=0.5", "--moe.shared_experts=1", "--moe.score=sigmoid", "--moe.bias_update_rate=0.01",
      "--moe.aux_probability=score", "--model.qk_norm=true"}},
    // With eps = 1e-8, rounding decides AdamW's first step of an element with a tiny gradient.
    // Gradient norms then differ by 2e-5 (MicroBatches.OfAnySizeGiveTheSameGradient).
    {"top1_every_second_tied_biases",
     {"--moe.top_k=1", "--moe.every=2", "--model.tie_embeddings=true", "--model.bias=true", "--model.norm=layernorm",
      "--train.z_loss=0.001", "--train.eps=1e-6"}},
    {"noisy_biases_clamped",
     {"--moe.choice=noisy", "--moe.noise=0.5", "--moe.bias=true", "--moe.router_bias=true",
      "--model.ffn=swiglu_clamped", "--model.ffn_clamp=0.5"}},
    {"learned_noise", {"--moe.choice=noisy", "--moe.noise=1", "--moe.learned_noise=true", "--moe.jitter=0.05"}},
    {"balanced_choice", {"--moe.choice=balanced", "--moe.capacity_factor=1"}},
    {"sampled_gated_shared_jitter",
     {"--moe.choice=sampled", "--moe.jitter=0.1", "--moe.shared_experts=1", "--moe.shared_d_ff=24",
      "--moe.shared_gate=true", "--moe.renormalize=false"}},
    {"post_norm_learned_scaled",
     {"--model.norm_position=post", "--model.position=learned", "--model.scale_embedding=true",
      "--model.embedding_norm=true", "--model.norm=layernorm", "--model.bias=all", "--model.output_bias=true"}},
    // Norms of values that are small at first make rounding errors grow with each step, even with
    // data parallelism alone. Fewer steps limit this.
    {"both_norms_whole_qk_norm",
     {"--model.norm_position=both", "--model.qk_norm=whole", "--model.logit_scale=1.5", "--model.bias=qkv",
      "--model.norm_offset=true", "--train.lr=1e-3", "--train.steps=8"}},
    {"clip_qkv_whole_qk_norm",
     {"--model.clip_qkv=1", "--model.qk_norm=whole", "--model.norm_position=both", "--train.lr=1e-3",
      "--train.steps=8"}},
    {"output_norm_sinusoidal",
     {"--model.norm_position=output", "--model.position=sinusoidal", "--model.scale_embedding=true", "--train.lr=1e-3",
      "--train.steps=8"}},
    {"parallel_interleaved_whole_qk_norm",
     {"--model.parallel_block=true", "--model.rope_pairs=interleaved", "--model.rope_fraction=0.7",
      "--model.qk_norm=whole", "--moe.first_dense=0", "--model.rope_scaling=linear", "--model.rope_factor=2"}},
    {"xielu_residual_scale_qk_norm_after_rope",
     {"--model.ffn=xielu", "--moe.ffn=swiglu", "--model.residual_scale=0.5", "--model.embedding_scale=2",
      "--model.qk_norm=head", "--model.qk_norm_after_rope=true", "--train.lr=1e-3", "--train.steps=8"}},
    {"command_r_plus",
     {"--model.parallel_block=true", "--model.norm=layernorm", "--model.qk_norm=head_layernorm",
      "--model.rope_pairs=interleaved", "--model.logit_scale=0.8", "--model.tie_embeddings=true", "--train.lr=1e-3",
      "--train.steps=8"}},
    {"scores_and_sparse_patterns",
     {"--model.pattern=a,b,c", "--model.t5_buckets=8", "--model.t5_max_distance=16", "--attention.a.position=t5",
      "--attention.a.attention_sinks=true", "--attention.b.position=alibi", "--attention.b.attention=strided",
      "--attention.b.attention_stride=4", "--attention.c.position=t5", "--attention.c.attention=fixed",
      "--attention.c.attention_stride=5", "--attention.c.attention_summary=2"}},
    // Like gpt-oss, and like Gemma 3 with DeepSeek-V3's experts.
    {"windows_sinks_biases_clamped_yarn",
     {"--model.pattern=local,global", "--attention.local.window=6", "--model.attention_sinks=true", "--model.bias=all",
      "--model.ffn=swiglu_clamped", "--model.rope_scaling=yarn", "--model.rope_factor=4",
      "--model.rope_original_length=8", "--model.attention_scale=0.3", "--moe.bias=true", "--moe.router_bias=true",
      "--moe.first_dense=0"}},
    {"both_norms_offset_softcaps_sigmoid_groups",
     {"--model.norm_position=both", "--model.norm_offset=true", "--model.qk_norm=head", "--model.attention_softcap=5",
      "--model.output_softcap=10", "--model.scale_embedding=true", "--model.pattern=local,global",
      "--attention.local.window=6", "--attention.global.rope_scaling=linear", "--attention.global.rope_factor=8",
      "--moe.score=sigmoid", "--moe.groups=2", "--moe.aux_probability=score", "--moe.shared_experts=1",
      "--moe.ffn=geglu", "--train.lr=1e-3", "--train.steps=8"}},
    {"latent",
     {"--model.kv_heads=0", "--model.kv_lora_rank=14", "--model.q_lora_rank=10", "--model.qk_rope_head_dim=4",
      "--model.v_head_dim=5", "--model.rope_pairs=interleaved", "--moe.shared_experts=1", "--moe.score=sigmoid"}},
    {"latent_without_one_of_queries",
     {"--model.kv_heads=0", "--model.kv_lora_rank=9", "--model.qk_rope_head_dim=6", "--model.head_dim=4",
      "--model.attention_sinks=true", "--model.window=8", "--model.parallel_block=true"}},
    {"indexed",
     {"--model.attention=indexed", "--model.index_n_heads=3", "--model.index_head_dim=10", "--model.index_topk=6",
      "--model.init_std=0.1", "--train.indexer_loss_weight=30", "--train.lr=1e-3", "--train.steps=8"}},
    {"indexed_latent",
     {"--model.attention=indexed", "--model.index_n_heads=4", "--model.index_head_dim=8", "--model.index_topk=5",
      "--model.kv_heads=0", "--model.kv_lora_rank=14", "--model.q_lora_rank=10", "--model.qk_rope_head_dim=4",
      "--model.v_head_dim=5", "--data.documents=mask", "--model.init_std=0.1", "--train.indexer_loss_weight=30",
      "--train.lr=1e-3", "--train.steps=8"}},
    {"indexed_warmup",
     {"--model.attention=indexed", "--model.index_n_heads=3", "--model.index_head_dim=10", "--train.indexer=warmup",
      "--moe.bias_update_rate=0.01", "--moe.score=sigmoid", "--model.init_std=0.1", "--train.indexer_loss_weight=30",
      "--train.steps=8"}},
    {"lsh",
     {"--model.attention=lsh", "--model.kv_heads=0", "--model.position=learned", "--model.seq_len=24",
      "--model.lsh_chunk_length=6", "--model.lsh_buckets=2,4", "--model.lsh_rounds=2", "--model.bias=all",
      "--train.lr=1e-3", "--train.steps=4"}},
    {"lsh_reformer",
     {"--model.pattern=local,lsh", "--attention.local.attention=local", "--model.local_chunk_length=8",
      "--attention.lsh.attention=lsh", "--model.kv_heads=0", "--model.seq_len=24", "--model.lsh_chunk_length=8",
      "--model.lsh_buckets=4", "--model.position=axial", "--model.axial_shape=4,6", "--model.axial_widths=16,8",
      "--train.reversible=true", "--model.reversible_output=concat", "--model.norm=layernorm", "--train.lr=1e-3",
      "--train.steps=4"}},
    {"mtp",
     {"--model.mtp_depth=2", "--moe.shared_experts=1", "--model.tie_embeddings=true", "--train.z_loss=0.01",
      "--train.steps=8"}},
    {"mtp_latent",
     {"--model.mtp_depth=1", "--model.kv_heads=0", "--model.kv_lora_rank=9", "--model.q_lora_rank=8",
      "--model.qk_rope_head_dim=4", "--moe.aux_scope=global_batch", "--moe.aux_layers=joint", "--train.steps=8"}},
    // The ranks of a step have different numbers of targets that the loss counts.
    {"ignored_targets", {"--data.mask_eod_loss=true", "--train.z_loss=0.001"}},
    {"documents_mask", {"--data.documents=mask", "--model.position=learned", "--moe.aux_scope=global_batch"}},
    // About two fifths of the tokens are padding.
    {"documents_pack", {"--data.documents=pack", "--moe.capacity_factor=0.7"}},
    {"documents_pack_probability",
     {"--data.documents=pack", "--moe.drop_order=probability", "--moe.capacity_factor=0.7", "--model.position=alibi"}},
    {"documents_pack_latent",
     {"--data.documents=pack", "--model.kv_heads=0", "--model.kv_lora_rank=9", "--model.qk_rope_head_dim=6",
      "--model.head_dim=4", "--moe.capacity_factor=0"}},
    // The thresholds clip several heads at each step.
    {"muon_clipped", {"--train.optimizer=muon", "--train.qk_clip=0.02", "--model.bias=qkv"}},
    {"latent_clipped",
     {"--model.kv_heads=0", "--model.kv_lora_rank=14", "--model.q_lora_rank=10", "--model.qk_rope_head_dim=4",
      "--model.v_head_dim=5", "--train.qk_clip=0.02"}},
    // The ranks of a step have different numbers of hidden tokens.
    {"encoder_pack",
     {"--model.kind=encoder", "--model.mask_token=36", "--train.mask_rate=0.3", "--data.documents=pack",
      "--model.pattern=local,global", "--attention.local.window=4", "--moe.aux_scope=global_batch"}},
    // The ranks of a step have different numbers of targets, which follow the prefix of a document.
    {"prefix_pack",
     {"--train.objective=prefix", "--data.documents=pack", "--model.position=t5", "--model.t5_buckets=8",
      "--model.t5_max_distance=16", "--moe.aux_scope=global_batch", "--train.z_loss=0.001"}},
    // Both sequences have padding. The ranks of a step have different numbers of targets.
    {"encoder_decoder_t5",
     {"--model.kind=encoder_decoder", "--encoder.layers=2", "--decoder.layers=2", "--encoder.seq_len=24",
      "--decoder.seq_len=12", "--model.sentinels=20", "--model.sentinel_token=30", "--model.start_token=0",
      "--train.mask_rate=0.3", "--model.position=t5", "--model.t5_buckets=8", "--model.t5_max_distance=16",
      "--model.attention_scale=1", "--model.tie_embeddings=true", "--model.logit_scale=0.2", "--moe.first_dense=0",
      "--decoder.every=2", "--train.steps=8"}},
    {"encoder_decoder_post_norm_prefix",
     {"--model.kind=encoder_decoder", "--train.objective=prefix", "--encoder.layers=1", "--decoder.layers=2",
      "--encoder.seq_len=24", "--decoder.seq_len=24", "--model.start_token=0", "--model.position=sinusoidal",
      "--model.norm_position=post", "--model.norm=layernorm", "--model.bias=all", "--model.scale_embedding=true",
      "--moe.first_dense=0", "--moe.aux_scope=global_batch", "--train.recompute=norms", "--train.steps=8"}},
    {"encoder_longformer",
     {"--model.kind=encoder", "--model.mask_token=36", "--model.attention=longformer", "--model.window=3",
      "--model.global_tokens=2", "--model.position=learned", "--model.norm_position=post", "--model.bias=all",
      "--model.norm=layernorm", "--train.mask_rate=0.5"}},
    {"encoder_longformer_global_projections",
     {"--model.kind=encoder", "--model.mask_token=36", "--model.attention=longformer", "--model.window=3",
      "--model.global_tokens=2", "--model.global_projections=true", "--model.position=learned", "--model.bias=all",
      "--train.mask_rate=0.5", "--train.recompute=norms", "--train.steps=8"}},
    {"encoder_decoder_led",
     {"--model.kind=encoder_decoder", "--train.objective=prefix", "--encoder.layers=2", "--decoder.layers=1",
      "--encoder.seq_len=24", "--decoder.seq_len=24", "--model.start_token=0", "--model.position=learned",
      "--model.norm_position=post", "--model.norm=layernorm", "--model.bias=all", "--model.embedding_norm=true",
      "--encoder.attention=longformer", "--encoder.window=4", "--encoder.global_tokens=3",
      "--encoder.global_projections=true", "--moe.first_dense=0", "--train.steps=8"}},
    {"lora",
     {"--train.lora_rank=3", "--train.lora_alpha=6", "--moe.shared_experts=1", "--model.bias=all",
      "--model.qk_norm=head", "--train.lr=2e-2", "--train.steps=8"}},
    {"lora_of_some_placed",
     {"--train.lora_rank=2", "--train.lora_targets=attention.q, attention.v, experts.down", "--train.optimizer=sgd",
      "--train.lr=0.3", "--train.steps=8", "--model.tie_embeddings=true", "--moe.bias=true",
      "--model.position=learned"},
     true},
    {"lora_latent",
     {"--train.lora_rank=2", "--model.kv_heads=0", "--model.kv_lora_rank=14", "--model.q_lora_rank=10",
      "--model.qk_rope_head_dim=4", "--model.v_head_dim=5", "--model.mtp_depth=1", "--train.lr=2e-2",
      "--train.steps=8"}},
    {"reversible", {"--train.reversible=true", "--moe.drop_order=probability", "--model.bias=all", "--train.steps=8"}},
    {"reversible_learned_noise_placed",
     {"--train.reversible=true", "--moe.choice=noisy", "--moe.noise=1", "--moe.learned_noise=true",
      "--moe.shared_experts=1", "--moe.bias=true", "--model.norm_position=both", "--train.lr=1e-3", "--train.steps=8"},
     true},
    {"batchnorm", {"--model.norm=batchnorm", "--train.lr=1e-3", "--train.steps=8"}},
    // The ranks of a step have different numbers of real tokens.
    {"batchnorm_encoder_pack",
     {"--model.norm=batchnorm", "--model.kind=encoder", "--model.mask_token=36", "--train.mask_rate=0.3",
      "--data.documents=pack", "--model.norm_position=post", "--model.embedding_norm=true", "--model.norm_bias=true",
      "--train.lr=1e-3", "--train.steps=8"}},
    {"batchnorm_encoder_decoder",
     {"--model.norm=batchnorm", "--model.kind=encoder_decoder", "--encoder.layers=2", "--decoder.layers=2",
      "--encoder.seq_len=24", "--decoder.seq_len=12", "--model.sentinels=20", "--model.sentinel_token=30",
      "--model.start_token=0", "--train.mask_rate=0.3", "--moe.first_dense=0", "--train.lr=1e-3", "--train.steps=8"}},
    {"pattern",
     {"--model.pattern=local*2,global", "--attention.local.window=6", "--attention.local.rope_theta=100",
      "--attention.global.position=none"}},
};

// Largest difference between the parameters of one rank and this rank's slice of those of a layout.
double parameter_difference(const Config& config, const History& one, const History& many, const Layout& layout,
                            int rank) {
  double most = 0;
  for (const ParamSpec& spec : param_specs(config, 37)) {
    const Box box = owned_box(spec.shape, spec.split, layout, coord_of(layout, rank));
    const std::vector<float>&whole = one.weights.at(spec.name), &shard = many.weights.at(spec.name);
    EXPECT_EQ(static_cast<Index>(shard.size()), box.elements()) << spec.name;
    for (Index i = 0; i < box.elements(); ++i)
      most = std::max(
          most, std::abs(static_cast<double>(whole[test::whole_index(spec.shape, box, i, spec.physical_to_logical)]) -
                         shard[i]));
  }
  return most;
}

// Micro-batch with which one rank alone has the same scopes of the load-balancing loss and the same
// batches of norms as a layout; 0 if there is none.
Index at_once_alone(const Config& config, const Layouts& l) {
  if (config.model.norm == NormKind::batchnorm) return l.micro_batch * (l.ranks / l.tp);
  switch (config.moe.aux_scope) {
    case AuxScope::sequence:
      return config.train.micro_batch;
    case AuxScope::micro_batch:
      return l.tp == 1 ? l.micro_batch : 0;
    case AuxScope::global_batch:
      return l.micro_batch * (l.ranks / l.tp);
  }
  return 0;
}

class LayoutCase : public testing::TestWithParam<Case> {};

TEST_P(LayoutCase, RoutingDropsAndLossesEqualOneRank) {
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder);
  const auto self = make_comm_self();
  std::map<std::pair<std::string, Index>, History> reference;  // by model and micro-batch
  int compared = 0;
  auto common = GetParam().settings;
  // The emulator, or one GPU for all ranks, is slow.
  if (tested_device.backend == "cuda") common.push_back("--train.steps=4");
  for (const Layouts& l : layout_cases) {
    if (l.ranks != world().size()) continue;
    Config alone = parse_config(l.model, "test", common);
    alone.train.micro_batch = at_once_alone(alone, l);
    if (alone.train.micro_batch == 0) continue;
    History& one = reference[{l.model, alone.train.micro_batch}];
    if (one.steps.empty()) one = train(*self, dataset, alone);
    const auto learnt_loss = [&](const StepResult& s) {
      return alone.trains_indexers_alone() ? s.metrics.indexer_loss.value_or(0) : s.metrics.loss;
    };
    const auto lowest = std::ranges::min_element(one.steps, {}, learnt_loss);
    // The few steps of devices that are slow to test teach little.
    ASSERT_TRUE(lowest != one.steps.begin() || tested_device.backend != "cpu") << "nothing was learnt";
    auto settings = common;
    for (const auto& [key, value] : {std::pair{"parallel.tp", l.tp},
                                     {"parallel.ep", l.ep},
                                     {"parallel.etp", l.etp},
                                     {"parallel.ranks_per_node", l.node},
                                     {"train.micro_batch", l.micro_batch}})
      settings.push_back(fmt::format("--{}={}", key, value));
    settings.push_back("--run.dtype=" + tested_device.dtype);
    const Bounds bound = bounds();
    Config config = parse_config(l.model, "test", settings);
    if (!config.train.reversible) config.train.recompute = l.recompute;
    if (GetParam().placed) config.moe.physical_to_logical = shifted_orders(config);
    const History many = train(world(), dataset, config);
    bool tied = false;
    for (std::size_t i = 0; i < one.steps.size() && !tied; ++i) {
      const StepMetrics &a = one.steps[i].metrics, &b = many.steps[i].metrics;
      const std::string where = fmt::format("{} ranks, tp {} ep {} etp {} node {}, micro-batch {}, step {}", l.ranks,
                                            l.tp, l.ep, l.etp, l.node, l.micro_batch, i + 1);
      ASSERT_EQ(a.routed, b.routed) << where;
      if (!bound.counts) {
        ASSERT_NEAR(a.loss, b.loss, bound.loss * a.loss) << where;
        continue;
      }
      const bool same = one.steps[i].routed == many.steps[i].routed && one.steps[i].dropped == many.steps[i].dropped &&
                        std::abs(a.grad_norm - b.grad_norm) < bound.norm * a.grad_norm;
      const double gap = std::min(one.gaps[i], one.gaps[i > 0 ? i - 1 : 0]);
      if (!same && gap < bound.scores) {
        if (world().rank() == 0) fmt::print("{}: two scores tie to within {:.1e}; compared up to here\n", where, gap);
        ASSERT_GT(i, 0u) << "the first step starts from equal weights";
        tied = true;
        break;
      }
      ASSERT_EQ(one.steps[i].routed, many.steps[i].routed) << where;
      ASSERT_EQ(one.steps[i].dropped, many.steps[i].dropped) << where;
      ASSERT_NEAR(a.loss, b.loss, bound.loss * a.loss) << where;
      ASSERT_EQ(a.mtp_loss.has_value(), config.model.mtp_depth > 0);
      if (a.mtp_loss) {
        ASSERT_NEAR(*a.mtp_loss, *b.mtp_loss, bound.loss * *a.mtp_loss) << where;
      }
      ASSERT_EQ(a.indexer_loss.has_value(), config.num_indexers() > 0);
      if (a.indexer_loss) {
        ASSERT_NEAR(*a.indexer_loss, *b.indexer_loss, bound.loss * *a.indexer_loss) << where;
      }
      ASSERT_NEAR(a.aux_loss, b.aux_loss, bound.loss * a.aux_loss) << where;
      ASSERT_NEAR(a.z_loss, b.z_loss, bound.loss * a.z_loss) << where;
      ASSERT_NEAR(a.grad_norm, b.grad_norm, bound.norm * a.grad_norm) << where;
    }
    if (tied) continue;
    ++compared;
    if (!bound.counts) continue;
    const Layout layout{l.ranks, l.tp, l.ep, l.etp, l.node};
    // 20 steps of AdamW move a weight by up to 0.1. If its gradient is almost 0, rounding decides
    // the direction.
    EXPECT_LT(parameter_difference(config, one, many, layout, world().rank()), bound.parameters)
        << l.ranks << " ranks, " << layout.short_name();
    ASSERT_EQ(one.averages.size(), many.averages.size());
    for (std::size_t i = 0; i < one.averages.size(); ++i)
      EXPECT_NEAR(one.averages[i], many.averages[i], bound.parameters * (1 + std::abs(one.averages[i]))) << i;
  }
  if (world().rank() == 0) fmt::print("{} layouts compared to the last step\n", compared);
  EXPECT_GT(compared, 0);
}

// With eps = 1, AdamW's first step alone moves a weight by lr * g / (|g| + 1). The updated weights
// therefore give the gradient of every element.
TEST_P(LayoutCase, GradientsEqualOneRank) {
  if (tested_device.dtype != "f32") GTEST_SKIP() << "weights are compared in f32";
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder);
  const auto self = make_comm_self();
  auto settings = GetParam().settings;
  settings.insert(settings.end(),
                  {"--train.steps=1", "--train.eps=1", "--train.lr=1000", "--train.min_lr=0", "--train.warmup=0",
                   "--train.schedule=constant", "--train.weight_decay=0", "--train.clip=0"});
  int compared = 0;
  for (const Layouts& l : layout_cases) {
    if (l.ranks != world().size()) continue;
    Config config = parse_config(l.model, "test", settings);
    config.train.micro_batch = at_once_alone(config, l);
    if (config.train.micro_batch == 0) continue;
    const History one = train(*self, dataset, config);
    Engine fresh(config, dataset.vocab(), make_cpu(), make_mesh(*self, {}), true);
    fresh.store().initialize(config.train.seed);
    config.parallel = {l.tp, l.ep, l.etp, l.node};
    config.train.micro_batch = l.micro_batch;
    if (!config.train.reversible) config.train.recompute = l.recompute;
    if (GetParam().placed) config.moe.physical_to_logical = shifted_orders(config);
    const History many = train(world(), dataset, config);
    ASSERT_EQ(one.steps[0].routed, many.steps[0].routed);
    ASSERT_EQ(one.steps[0].dropped, many.steps[0].dropped);
    std::map<std::string, double> largest;  // gradient of each parameter, times lr
    double of_all = 0;
    for (const auto& [name, weights] : one.weights) {
      const float* const before = fresh.store().get(name).weight.f32();
      for (std::size_t i = 0; i < weights.size(); ++i)
        largest[name] = std::max(largest[name], std::abs(static_cast<double>(weights[i]) - before[i]));
      of_all = std::max(of_all, largest[name]);
    }
    ASSERT_GT(of_all, 1);
    // The update of a rule over matrices, such as Muon's, is no gradient, and amplifies rounding.
    const double of_update = update_rule(config.train.optimizer).matrix_rule ? 10 : 1;
    const Layout layout{l.ranks, l.tp, l.ep, l.etp, l.node};
    for (const ParamSpec& spec : param_specs(config, dataset.vocab())) {
      const Box box = owned_box(spec.shape, spec.split, layout, coord_of(layout, world().rank()));
      const double most = of_update * bounds().norm * largest.at(spec.name) + 1e-6 * of_all;
      for (Index i = 0; i < box.elements(); ++i)
        ASSERT_NEAR(one.weights.at(spec.name)[test::whole_index(spec.shape, box, i, spec.physical_to_logical)],
                    many.weights.at(spec.name)[i], most)
            << layout.str() << ", " << spec.name << ", element " << i << " of rank " << world().rank();
    }
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Drops, LayoutCase, testing::ValuesIn(cases), [](const auto& test) { return test.param.name; });

TEST(Layout, TrainsBitwiseEqualOnTheSameLayout) {
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder);
  const int n = world().size() % 3 ? world().size() : 3;
  for (const char* dtype : {"f32", "bf16"})
    for (const std::string axis : {"ep", "tp", "etp"}) {
      if (axis != "ep" && n > 4) continue;  // heads and widths of experts are not divisible by 8
      // On the CUDA emulator, all of them take minutes.
      if (test::tested_device.backend != "cpu" && (axis != "ep" || std::string_view(dtype) != "f32")) continue;
      std::vector<std::string> settings = {fmt::format("--parallel.{}={}", axis, n), "--train.steps=6",
                                           std::string("--run.dtype=") + dtype, "--moe.shared_experts=1"};
      if (axis == "etp")
        settings.insert(settings.end(), {"--model.kv_lora_rank=8", "--model.q_lora_rank=6",
                                         "--model.qk_rope_head_dim=2", "--model.kv_heads=0"});
      Config config = parse_config(world().size() % 3 ? eight : six, "test", settings);
      const History a = train(world(), dataset, config);
      // Recomputed activations are equal to the saved ones.
      for (const Recompute mode : {none, norms, experts, attention, block}) {
        config.train.recompute = mode;
        const History b = train(world(), dataset, config);
        const std::string where = fmt::format("{} {} {}", dtype, axis, value_of(config, "train.recompute"));
        for (std::size_t i = 0; i < a.steps.size(); ++i) {
          ASSERT_EQ(a.steps[i].metrics.loss, b.steps[i].metrics.loss) << where;
          ASSERT_EQ(a.steps[i].metrics.grad_norm, b.steps[i].metrics.grad_norm) << where;
        }
        ASSERT_EQ(a.weights, b.weights) << where;
      }
    }
}

// A selection bias sends every token to the first two experts. The experts of all ranks except the
// first receive none.
TEST(Layout, TrainsWithIdleExperts) {
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder);
  const int n = world().size();
  const std::string ep = std::to_string(n % 3 ? n : 3);
  const Config config = parse_config(
      n % 3 ? eight : six, "test",
      {"--parallel.ep=" + ep, "--moe.bias_update_rate=1e-9", "--moe.capacity_factor=0", "--train.steps=30"});
  const Layout layout{n, 1, static_cast<int>(config.parallel.ep), 1};
  Engine engine(config, dataset.vocab(), make_cpu(), make_mesh(world(), layout), true);
  engine.store().initialize(config.train.seed);
  std::vector<float> bias = engine.router_bias();
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = i % config.moe.experts < 2 ? 100.0f : 0.0f;
  engine.set_router_bias(bias);
  const SampleStream samples = training_samples(dataset, config);
  Trainer trainer(engine, samples);
  double first = 0, last = 0;
  for (Index i = 0; i < config.train.steps; ++i) {
    const StepResult result = trainer.step();
    for (const auto& layer : result.routed)
      for (Index e = 2; e < config.moe.experts; ++e) ASSERT_EQ(layer[e], 0);
    last = result.metrics.loss;
    if (i == 0) first = last;
  }
  EXPECT_TRUE(std::isfinite(last));
  EXPECT_LT(last, first);
  engine.store().finish_all_gather();
  for (const ParamSpec& spec : engine.store().specs()) {
    const View w = engine.store().get(spec.name).weight;
    for (Index i = 0; i < w.elements(); ++i) ASSERT_TRUE(std::isfinite(w.f32()[i])) << spec.name;
  }
}

// The last shard of the vocabulary has a row less than the others. All ranks divide the tokens of
// the loss into chunks of equal size nevertheless.
TEST(Layout, LossOfUnequalShardsOfTheVocabularyEqualsOneRank) {
  const int n = world().size();
  if (n > 4) return;  // more ranks than heads
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder);
  Config config = parse_config(n % 3 ? eight : six, "test", {fmt::format("--parallel.tp={}", n), "--train.steps=1"});
  config.train.micro_batch = config.train.global_batch = 4096 / config.model.seq_len;
  const auto loss = [&](Comm& comm, const Layout& layout) {
    Engine engine(config, 1501 * n - 1, make_cpu(), make_mesh(comm, layout), true);
    engine.store().initialize(config.train.seed);
    const SampleStream samples = training_samples(dataset, config);
    return Trainer(engine, samples).step().metrics.loss;
  };
  const auto self = make_comm_self();
  const double one = loss(*self, {}), many = loss(world(), {n, n});
  EXPECT_NEAR(many, one, 1e-5 * one);
}

// On every layout, evaluation gives the results of one rank. Here the last window of each domain is
// short, and tensor-parallel ranks cannot share its tokens. With these capacities, one more token
// would let an expert accept one more.
TEST(Layout, EvaluationEqualsOneRank) {
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder);
  const auto self = make_comm_self();
  for (const Layouts& l : layout_cases)
    for (const char* capacity : {"0", "0.44", "0.75"}) {
      // Evaluation computes no load-balancing loss: ranks with fewer windows than others miss none.
      const Config config = parse_config(
          l.model, "test",
          {std::string("--moe.capacity_factor=") + capacity, "--train.seed=2",
           capacity[0] == '0' && capacity[1] ? "--moe.aux_scope=global_batch" : "--moe.aux_scope=sequence"});
      if (l.ranks != world().size() || config.model.seq_len % l.tp != 0) continue;
      const auto evaluated = [&](Comm& comm, const Layout& split) {
        Engine engine(config, dataset.vocab(), make_cpu(), make_mesh(comm, split), false);
        engine.store().initialize(config.train.seed);
        return evaluate(engine, dataset, {.windows_per_pass = 3, .dropless = false}, [](Index, Index) {});
      };
      const Layout layout{l.ranks, l.tp, l.ep, l.etp, l.node};
      const std::vector<DomainScore> one = evaluated(*self, {}), many = evaluated(world(), layout);
      for (std::size_t d = 0; d < one.size(); ++d) {
        const std::string where = fmt::format("{}, capacity {}, {}", layout.str(), capacity, one[d].name);
        EXPECT_EQ(many[d].tokens, 30 * 71 - 1) << where;
        EXPECT_NEAR(many[d].loss(), one[d].loss(), 1e-6) << where;
        for (std::size_t moe = 0; moe < one[d].experts.size(); ++moe) {
          const auto &a = one[d].experts[moe], &b = many[d].experts[moe];
          EXPECT_EQ(std::accumulate(b.begin(), b.end(), Index{0}), many[d].tokens * config.moe.top_k) << where;
          // Two scores may tie within rounding.
          for (std::size_t e = 0; e < a.size(); ++e) EXPECT_LE(std::abs(b[e] - a[e]), 1) << where << ", expert " << e;
        }
      }
    }
}

// The `rank` scope depends on the layout: each rank's micro-batch has its own capacity.
TEST(Layout, RankScopeDropsPerMicroBatchOfARank) {
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder);
  std::vector<std::string> settings = {"--moe.capacity_scope=rank", "--train.steps=3", "--moe.capacity_factor=0.5"};
  const int n = world().size();
  if (8 % n != 0) return;  // runs with 1, 2, 4 and 8 ranks
  settings.push_back("--train.micro_batch=" + std::to_string(8 / n));
  settings.push_back("--parallel.ep=" + std::to_string(n));
  const History many = train(world(), dataset, parse_config(eight, "test", settings));
  // One rank with the same micro-batches, one after another, has the same scopes.
  settings.back() = "--parallel.ep=1";
  const auto self = make_comm_self();
  const History one = train(*self, dataset, parse_config(eight, "test", settings));
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    ASSERT_EQ(one.steps[i].dropped, many.steps[i].dropped);
    ASSERT_GT(one.steps[i].metrics.dropped, 0);
    ASSERT_NEAR(one.steps[i].metrics.loss, many.steps[i].metrics.loss, 1e-5 * one.steps[i].metrics.loss);
  }
}

}  // namespace
}  // namespace sy
