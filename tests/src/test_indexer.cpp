// Sparse attention with an indexer in whole models: its stages, its settings and its costs. The
// gradients are compared in test_model.cpp, and generation in test_generate.cpp.
#include <gtest/gtest.h>

#include <map>

#include "src/io/checkpoint.h"
#include "src/model/engine.h"
#include "src/params/costs.h"
#include "src/train/distributed_optimizer.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

constexpr const char* indexed_grouped = R"(
[model]
layers = 2
d_model = 24
heads = 4
kv_heads = 2
head_dim = 6
seq_len = 20
d_ff = 40
attention = indexed
index_n_heads = 3
index_head_dim = 8
index_topk = 5
[moe]
experts = 4
first_dense = 1
d_ff = 18
score = sigmoid
bias_update_rate = 0.01
)";
const std::vector<std::string> indexed_latent = {"--model.kv_heads=0", "--model.kv_lora_rank=14",
                                                 "--model.q_lora_rank=10", "--model.qk_rope_head_dim=4",
                                                 "--model.v_head_dim=5"};
constexpr Index vocab = 37, sequences = 2;

Config config_with(std::vector<std::string> settings, const std::vector<std::string>& more = {}) {
  settings.insert(settings.end(), more.begin(), more.end());
  return parse_config(indexed_grouped, "test", settings);
}

using Weights = std::map<std::string, std::vector<float>>;

Weights weights_of(Engine& engine) {
  Weights all;
  for (const ParamSpec& spec : engine.store().specs()) {
    const View w = engine.store().get(spec.name).weight;
    all[spec.name].assign(w.f32(), w.f32() + w.elements());
  }
  return all;
}

std::vector<std::int32_t> ids_of(const Config& config) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(sequences * config.model.seq_len));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % vocab);
  return ids;
}

// Logits of the model with these weights. Parameters of `weights` that it lacks are ignored.
std::vector<float> logits_with(const Config& config, const Weights& weights) {
  const auto self = make_comm_self();
  Engine engine(config, vocab, make_cpu(), make_mesh(*self, {}), false);
  for (const ParamSpec& spec : engine.store().specs())
    std::ranges::copy(weights.at(spec.name), engine.store().get(spec.name).weight.f32());
  engine.store().packed_weights().invalidate();
  return engine.logits({sequences, config.model.seq_len, ids_of(config), {}});
}

Weights random_weights(const Config& config) {
  const auto self = make_comm_self();
  Engine engine(config, vocab, make_cpu(), make_mesh(*self, {}), false);
  engine.store().initialize(3);
  Weights weights = weights_of(engine);
  for (auto& [name, values] : weights) {
    const RandomStream random(4, name);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += 0.2f * static_cast<float>(random.normal(i));
  }
  return weights;
}

TEST(Indexer, WithAllKeysIsDenseAttention) {
  for (const std::vector<std::string>& kind : {std::vector<std::string>{}, indexed_latent}) {
    const Config sparse = config_with(kind);
    const Weights weights = random_weights(sparse);
    const std::vector<float> dense = logits_with(config_with(kind, {"--model.attention=causal"}), weights);
    EXPECT_EQ(logits_with(config_with(kind, {"--model.index_topk=20"}), weights), dense);
    EXPECT_EQ(logits_with(config_with(kind, {"--train.indexer=warmup"}), weights), dense);
    // With one key less, all queries but the last have the bits of dense attention. The last one
    // of a sequence leaves out a key.
    const std::vector<float> almost = logits_with(config_with(kind, {"--model.index_topk=19"}), weights);
    for (Index t = 0; t < 2 * 20; ++t)
      EXPECT_EQ(std::equal(dense.begin() + t * vocab, dense.begin() + (t + 1) * vocab, almost.begin() + t * vocab),
                t % 20 != 19)
          << t;
    EXPECT_NE(logits_with(sparse, weights), dense);
  }
}

// Steps on one batch. Returns the loss of the indexers at each step.
std::vector<double> train(Engine& engine, Index steps) {
  const Config& config = engine.config();
  DistributedOptimizer optimizer(engine.mesh(), engine.store(), engine.max_logits());
  const std::vector<std::int32_t> ids = ids_of(config);
  const Index T = std::ssize(ids);
  std::vector<double> losses;
  for (Index step = 1; step <= steps; ++step) {
    engine.forward_backward({sequences, T / sequences, ids, ids, T, sequences, 1});
    optimizer.step(config.train, 1e-2, step);
    losses.push_back(engine.take_statistics().indexer_loss_sum.value_or(-1));
  }
  engine.store().finish_all_gather();
  return losses;
}

TEST(Indexer, WarmupTrainsIndexersAlone) {
  for (const std::vector<std::string>& kind : {std::vector<std::string>{}, indexed_latent})
    for (const char* stage : {"warmup", "sparse"}) {
      const Config config =
          config_with(kind, {std::string("--train.indexer=") + stage, "--train.weight_decay=0.1",
                             "--model.init_std=0.3", "--train.global_batch=2", "--train.micro_batch=2"});
      const bool warmup = config.trains_indexers_alone();
      EXPECT_EQ(warmup, stage == std::string("warmup"));
      const auto self = make_comm_self();
      Engine engine(config, vocab, make_cpu(), make_mesh(*self, {}), true);
      engine.store().initialize(1);
      const Weights before = weights_of(engine);
      const std::vector<double> losses = train(engine, 30);
      if (warmup) {
        EXPECT_LT(losses.back(), 0.5 * losses.front());
      }
      EXPECT_GT(losses.back(), 0);
      for (const ParamSpec& spec : engine.store().specs()) {
        EXPECT_EQ(spec.frozen, warmup && !is_of_indexer(spec.name)) << spec.name;
        EXPECT_EQ(weights_of(engine).at(spec.name) == before.at(spec.name), spec.frozen) << spec.name;
      }
    }
}

// With a factor of 0, indexers get no gradient, and the model's gradients stay the same.
TEST(Indexer, LossDoesNotReachTheModel) {
  Weights after[2];
  for (const bool off : {false, true}) {
    const Config config =
        config_with({"--train.clip=0", "--train.weight_decay=0", "--model.init_std=0.3", "--train.global_batch=2",
                     "--train.micro_batch=2", off ? "--train.indexer_loss_weight=0" : "--train.indexer_loss_weight=1"});
    const auto self = make_comm_self();
    Engine engine(config, vocab, make_cpu(), make_mesh(*self, {}), true);
    engine.store().initialize(1);
    train(engine, 1);
    after[off] = weights_of(engine);
  }
  for (const auto& [name, values] : after[0]) EXPECT_EQ(values == after[1].at(name), !is_of_indexer(name)) << name;
}

TEST(Indexer, StartsFromADenseModel) {
  const TempFolder folder;
  const auto self = make_comm_self();
  const Config dense = config_with({"--model.attention=causal"});
  Engine first(dense, vocab, make_cpu(), make_mesh(*self, {}), true);
  first.store().initialize(1);
  TrainState state;
  state.step = 1;
  state.config = to_ini(dense);
  save_checkpoint(*self, folder.path(), state, first.store(), {});
  const auto path = resolve_checkpoint(*self, folder.path(), nullptr);

  Engine second(config_with({"--train.indexer=warmup"}), vocab, make_cpu(), make_mesh(*self, {}), true);
  second.store().initialize(2);
  const Weights initial = weights_of(second), wanted = weights_of(first);
  load_checkpoint(path, second.store(), Load::weights);
  for (const auto& [name, values] : weights_of(second))
    EXPECT_EQ(values, is_of_indexer(name) ? initial.at(name) : wanted.at(name)) << name;

  // Evaluation, and resumption, need all parameters.
  Engine evaluation(config_with({}), vocab, make_cpu(), make_mesh(*self, {}), false);
  EXPECT_THROW(load_checkpoint(path, evaluation.store(), Load::weights), InputError);
  EXPECT_THROW(load_checkpoint(path, second.store()), InputError);
}

TEST(Indexer, RejectsWrongSettings) {
  const auto error_of = [](const std::vector<std::string>& settings) -> std::string {
    try {
      config_with(settings);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--model.window=4"}, "model.window = 4 with model.attention = indexed"},
      {{"--model.position=alibi"}, "model.position = alibi with model.attention = indexed"},
      {{"--model.position=t5"}, "model.position = t5 with model.attention = indexed"},
      {{"--model.index_head_dim=4"}, "model.index_head_dim = 4 is less than the 6 elements"},
      {{"--model.index_topk=0"}, "model.index_topk = 0: must be from 1"},
      {{"--train.lora_rank=2"}, "train.lora_rank = 2 with model.attention = indexed"},
      {{"--train.qk_clip=9", "--train.indexer=warmup"}, "train.qk_clip = 9 with train.indexer = warmup"},
      {{"--model.attention=causal", "--train.indexer=warmup"}, "train.indexer = warmup without an indexer"},
      {{"--model.kind=encoder", "--moe.bias_update_rate=0"}, "model.attention = indexed with model.kind = encoder"},
      {{"--model.kind=encoder_decoder", "--moe.bias_update_rate=0"}, "decoder.attention = indexed"},
  };
  for (const auto& [settings, text] : wrong) {
    const std::string error = error_of(settings);
    EXPECT_NE(error.find(text), std::string::npos) << text << " is not in: " << error;
  }
  EXPECT_EQ(error_of({"--train.qk_clip=9"}), "");
  EXPECT_EQ(error_of({"--model.index_head_dim=4", "--model.rope_fraction=0.7"}), "");
}

TEST(Indexer, CountsInTheCostsOfAModel) {
  const auto costs = [](std::vector<std::string> settings) {
    return model_costs(config_with(std::move(settings)), vocab);
  };
  const ModelCosts dense = costs({"--model.attention=causal"}), sparse = costs({}),
                   warmup = costs({"--train.indexer=warmup"});
  const Index of_indexer = 3 * 8 * 24 + 8 * 24 + 2 * 8 + 3 * 24;
  EXPECT_EQ(sparse.parameters.total, dense.parameters.total + 2 * of_indexer);
  EXPECT_EQ(warmup.parameters.trained, 2 * of_indexer);
  EXPECT_EQ(sparse.kv_bytes_per_token, dense.kv_bytes_per_token + 2 * 2 * 8);
  EXPECT_EQ(warmup.kv_bytes_per_token, dense.kv_bytes_per_token);
  // Query p of 20 sees p + 1 keys, of which at most five are selected.
  const double all = 10.5, selected = (1 + 2 + 3 + 4 + 16 * 5) / 20.0, products = 2 * (of_indexer - 2 * 8);
  EXPECT_NEAR(sparse.flops_per_token - dense.flops_per_token,
              2 * (6 * 4 * 12 * (selected - all) + 3 * 8 * (2 * all + 4 * selected)) + 6 * products, 1e-6);
}

}  // namespace
}  // namespace sy
