// Selective recomputation: each mode of train.recompute gives the bits of `none`, and frees the
// bytes of its part.
#include <gtest/gtest.h>

#include <cstring>

#include "src/model/engine.h"
#include "src/params/costs.h"
#include "src/plan/profile.h"
#include "src/train/memory.h"

namespace sy {
namespace {

constexpr const char* recompute_text = R"(
[model]
layers = 3
d_model = 64
heads = 4
kv_heads = 2
head_dim = 32
d_ff = 96
seq_len = 16
[moe]
experts = 5
top_k = 2
d_ff = 64
capacity_factor = 0
[train]
micro_batch = 2
global_batch = 4
)";
constexpr Index batch_vocabulary = 50, batch_sequences = 2, batch_length = 16,
                batch_tokens = batch_sequences * batch_length;
constexpr const char* modes[] = {"none", "norms", "experts", "attention", "block"};

Config with(std::vector<std::string> settings, const std::string& mode) {
  settings.push_back("--train.recompute=" + mode);
  return parse_config(recompute_text, "test", settings);
}

struct Result {
  std::vector<std::uint32_t> gradients;  // bits
  double loss = 0;
  Index saved = 0, scratch = 0, in_use = 0;
};

// Two micro-batches in one slot each.
Result pass(const Config& config) {
  const auto self = make_comm_self();
  Engine engine(config, batch_vocabulary, make_cpu(), make_mesh(*self, {}), true, {}, 2);
  engine.store().initialize(5);
  std::vector<std::int32_t> ids(batch_tokens), targets(batch_tokens);
  for (Index micro = 0; micro < 2; ++micro) {
    for (Index i = 0; i < batch_tokens; ++i) {
      ids[i] = static_cast<std::int32_t>((i * i + 3 * micro) % batch_vocabulary);
      targets[i] = static_cast<std::int32_t>((7 * i + micro) % batch_vocabulary);
    }
    engine.forward({batch_sequences, batch_length, ids, targets, 2 * batch_tokens, 2 * batch_sequences, 2,
                    micro * batch_sequences},
                   micro);
  }
  for (const Index micro : {0, 1}) engine.backward(micro);
  Result result;
  for (const ParamSpec& spec : engine.store().specs()) {
    const View grad = engine.store().get(spec.name).grad;
    std::vector<std::uint32_t> bits(static_cast<std::size_t>(grad.elements()));
    std::memcpy(bits.data(), grad.f32(), bits.size() * sizeof bits[0]);
    result.gradients.insert(result.gradients.end(), bits.begin(), bits.end());
  }
  result.loss = engine.take_statistics().loss_sum;
  result.saved = engine.saved().peak();
  result.scratch = engine.scratch().peak();
  result.in_use = engine.saved().in_use() + engine.scratch().in_use();
  return result;
}

TEST(Recompute, EveryModeGivesTheBitsOfNone) {
  const std::vector<std::string> models[] = {
      {},
      {"--moe.experts=0", "--model.ffn=gelu", "--model.bias=all"},
      {"--model.norm_position=both", "--model.qk_norm=whole", "--model.clip_qkv=0.4", "--moe.bias=true"},
      {"--model.norm_position=residual", "--model.norm=layernorm", "--model.qk_norm=head"},
      {"--model.norm_position=post", "--moe.shared_experts=1", "--moe.every=2"},
      {"--model.norm_position=output", "--model.position=alibi", "--model.attention_sinks=true"},
      {"--model.parallel_block=true", "--moe.shared_experts=1", "--moe.shared_gate=true"},
      {"--model.parallel_block=true", "--model.parallel_norms=2", "--model.window=5"},
      {"--model.kv_heads=0", "--model.kv_lora_rank=24", "--model.q_lora_rank=16", "--model.qk_rope_head_dim=8",
       "--moe.shared_experts=2", "--moe.first_dense=1"},
      {"--model.kv_heads=0", "--model.kv_lora_rank=24", "--model.qk_rope_head_dim=8", "--moe.choice=noisy",
       "--moe.noise=1", "--moe.learned_noise=true", "--moe.jitter=0.1"},
      {"--model.mtp_depth=2", "--moe.shared_experts=1", "--moe.every=2"}};
  for (const std::vector<std::string>& model : models)
    for (const std::string dtype : {"f32", "bf16"}) {
      std::vector<std::string> settings = model;
      settings.push_back("--run.dtype=" + dtype);
      const Result none = pass(with(settings, "none"));
      for (const std::string mode : modes) {
        SCOPED_TRACE((model.empty() ? "" : model[0] + " ") + dtype + " " + mode);
        const Result result = pass(with(settings, mode));
        EXPECT_EQ(result.loss, none.loss);
        EXPECT_TRUE(result.gradients == none.gradients);
        EXPECT_EQ(result.in_use, 0);
      }
    }
}

// The forward pass frees the tensors of every layer. Backward has those of one layer again, except
// normalised inputs, which are in scratch memory.
TEST(Recompute, FreesTheBytesOfItsActivations) {
  const Index L = 3, D = 64, F = 64, H = 4, K = 2, hd = 32, k = 2, size = 4;
  const Index none = pass(with({}, "none")).saved;
  EXPECT_EQ(none - pass(with({}, "norms")).saved, 2 * L * batch_tokens * D * size);
  EXPECT_EQ(none - pass(with({}, "experts")).saved, (L - 1) * batch_tokens * k * 2 * F * size);
  EXPECT_EQ(none - pass(with({}, "attention")).saved,
            (L - 1) * (batch_tokens * (2 * H + 2 * K) * hd + batch_sequences * H * batch_length) * size);
  EXPECT_LT(pass(with({}, "block")).saved, pass(with({}, "attention")).saved);
}

TEST(Recompute, PlansKnowItsMemoryAndItsWork) {
  const auto cpu = make_cpu();
  const Config none = with({}, "none");
  const double once = Profiler(none, batch_vocabulary, cpu.get()).balanced({}).pass.flops();
  double before = once;
  for (const std::string mode : modes) {
    SCOPED_TRACE(mode);
    const Config config = with({}, mode);
    const Result result = pass(config);
    const MemoryPlan plan = plan_memory(config, batch_vocabulary, {}, 0, *cpu, 2);
    EXPECT_EQ(plan.saved, 2 * result.saved);
    EXPECT_EQ(plan.scratch, result.scratch);
    // Time estimates include the repeated work; MFU does not.
    const double flops = Profiler(config, batch_vocabulary, cpu.get()).balanced({}).pass.flops();
    if (mode == "none" || mode == "norms")
      EXPECT_EQ(flops, once);
    else
      EXPECT_GT(flops, before);
    before = mode == "experts" ? once : flops;
    EXPECT_EQ(model_costs(config, batch_vocabulary).flops_per_token,
              model_costs(none, batch_vocabulary).flops_per_token);
  }
  // 2 FLOPs for each weight of the up projections of the chosen experts.
  const double experts = Profiler(with({}, "experts"), batch_vocabulary, cpu.get()).balanced({}).pass.flops() - once;
  EXPECT_EQ(experts, 2.0 * 2 * batch_tokens * 3 * (2 * 2 * 64 * 64));
}

TEST(Recompute, ReadsTheFormerValues) {
  using enum Recompute;
  for (const auto& [text, mode] : {std::pair{"true", block}, {"false", none}, {"norms", norms}, {"experts", experts}}) {
    EXPECT_EQ(with({}, text).train.recompute, mode);
    const Config config = parse_config(std::string("[train]\nrecompute = ") + text + "\n", "a checkpoint");
    EXPECT_EQ(config.train.recompute, mode);
    EXPECT_EQ(parse_config(to_ini(config), "test").train.recompute, mode);
  }
  EXPECT_THROW(with({}, "layers"), InputError);
}

}  // namespace
}  // namespace sy
