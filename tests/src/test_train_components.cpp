// Small components of training and generation: schedules, sampling, and the optimizer step on one
// rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/generate/sample.h"
#include "src/model/engine.h"
#include "src/numerics/reference/all.h"
#include "src/train/distributed_optimizer.h"
#include "src/train/lr_schedule.h"
#include "src/train/memory.h"
#include "tests/src/box_index.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

Config::Train schedule(Schedule kind, Index steps, Index warmup) {
  Config::Train t;
  t.schedule = kind;
  t.steps = steps;
  t.warmup = warmup;
  t.lr = 1;
  t.min_lr = 0.1;
  return t;
}

// Values derived from weights are computed again after every possible change, also if the device
// packs no weights.
TEST(PackedWeights, RefreshesDerivedValuesAfterEveryChange) {
  const auto device = make_cpu();
  PackedWeights weights(*device, {}, [] {});
  int made = 0;
  weights.derive([&] { ++made; });
  const auto refreshed = [&] {
    weights.refresh();
    return made;
  };
  EXPECT_EQ(refreshed(), 1);
  EXPECT_EQ(refreshed(), 1);
  weights.invalidate();
  EXPECT_EQ(refreshed(), 2);
}

// The error of the allocation has the bytes, and the advice has the keys to set. Other errors stay
// unchanged.
TEST(Memory, AdviceNamesTheKeysToSet) {
  const auto fails = [](const std::vector<std::string>& settings) {
    const auto device = make_cpu();
    const std::string advice = memory_advice(parse_config("", "test", settings));
    return MESSAGE_OF(Failure, with_advice(advice, [&] { return device->allocate(Index{1} << 60); }));
  };
  EXPECT_EQ(fails({"--moe.experts=4", "--moe.capacity_factor=0"}),
            "no memory for 1152921504606846976 bytes: lower train.micro_batch, or set train.recompute = block, or set "
            "moe.capacity_factor, as some experts may get many more tokens than others, or use more ranks");
  EXPECT_EQ(fails({"--train.micro_batch=1", "--train.recompute=block"}),
            "no memory for 1152921504606846976 bytes: use more ranks");
  EXPECT_EQ(MESSAGE_OF(Failure, with_advice("none", [] { fail("a full disk"); })), "a full disk");
}

TEST(LearningRate, MatchesHandComputedValues) {
  const auto cosine = schedule(Schedule::cosine, 110, 10);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 10), 1);
  EXPECT_NEAR(learning_rate(cosine, 60), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(cosine, 110), 0.1, 1e-12);
  const auto linear = schedule(Schedule::linear, 110, 10);
  EXPECT_NEAR(learning_rate(linear, 35), 0.775, 1e-12);
  EXPECT_NEAR(learning_rate(linear, 110), 0.1, 1e-12);
  const auto wsd = schedule(Schedule::wsd, 100, 10);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 90), 1);
  EXPECT_NEAR(learning_rate(wsd, 95), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(wsd, 100), 0.1, 1e-12);
  // The warm-up reaches into the last tenth. The decay begins at its end.
  EXPECT_NEAR(learning_rate(schedule(Schedule::wsd, 100, 95), 96), 0.82, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(Schedule::constant, 10, 0), 1), 1);
}

TEST(LearningRate, IsFiniteAtTheLimits) {
  for (const Schedule kind : {Schedule::constant, Schedule::cosine, Schedule::linear, Schedule::wsd})
    for (Index steps : {1, 2, 5})
      for (Index warmup : {0, 1, 5, 50})
        for (Index step = 1; step <= steps; ++step) {
          const double lr = learning_rate(schedule(kind, steps, warmup), step);
          EXPECT_TRUE(lr > 0 && lr <= 1) << lr;
        }
}

TEST(Sample, GreedyChoosesTheLargestAndTheLowerOfTies) {
  EXPECT_EQ(sample_token(std::vector<float>{1, 3, 3, 2}, {.temperature = 0}, 0.9), 1);
  EXPECT_THROW(sample_token(std::vector<float>{NAN, NAN}, {}, 0.5), Failure);
  EXPECT_EQ(sample_token(std::vector<float>{NAN, -1e30f}, {.temperature = 0}, 0.5), 1);
}

TEST(Sample, FollowsTheDistribution) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  const auto shares = [&](const SampleOptions& o) {
    std::map<std::int32_t, double> count;
    for (int i = 0; i < 1000; ++i) count[sample_token(logits, o, (i + 0.5) / 1000)] += 1e-3;
    return count;
  };
  auto all = shares({.temperature = 1});
  EXPECT_NEAR(all[0], 0.5, 0.002);
  EXPECT_NEAR(all[3], 0.05, 0.002);
  auto two = shares({.temperature = 1, .top_k = 2});
  EXPECT_NEAR(two[0], 0.625, 0.002);
  EXPECT_EQ(two.size(), 2u);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.79}).size(), 2u);  // 0.5 + 0.3 reach 0.79
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.81}).size(), 3u);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 1e-9}).size(), 1u);
}

struct WithOptimizer {
  explicit WithOptimizer(const std::vector<std::string>& overrides)
      : config(parse_config("[model]\nlayers=1\nd_model=8\nheads=2\nseq_len=4\nd_ff=6\n", "test", overrides)),
        self(make_comm_self()),
        engine(config, 9, make_cpu(), make_mesh(*self, {}), true),
        optimizer(engine.mesh(), engine.store()) {
    engine.store().initialize(3);
  }
  Config config;
  std::unique_ptr<Comm> self;
  Engine engine;
  DistributedOptimizer optimizer;
};

// The whole step is compared with AdamW by hand, on elements of a matrix (decayed) and of a norm
// (not decayed).
TEST(DistributedOptimizer, ClipsAndDecaysMatricesOnly) {
  WithOptimizer one({"--train.clip=0.5", "--train.weight_decay=0.2"});
  const Param matrix = one.engine.store().get("output.weight"), norm = one.engine.store().get("final_norm.weight");
  const float w0 = matrix.weight.f32()[0], n0 = norm.weight.f32()[0];
  matrix.grad.f32()[0] = 3;
  norm.grad.f32()[0] = 4;
  one.optimizer.step(one.config.train, 0.01, 1);
  EXPECT_DOUBLE_EQ(one.optimizer.gradient_norm(), 5.0);
  // After clipping g = 0.3 and 0.4; the first AdamW step moves by lr * g / (|g| + eps).
  EXPECT_NEAR(matrix.weight.f32()[0], w0 - 0.01 * (1 + 0.2 * w0), 1e-6);
  EXPECT_NEAR(norm.weight.f32()[0], n0 - 0.01, 1e-6);
  one.engine.store().finish_gradients();
  EXPECT_EQ(matrix.grad.f32()[0], 0);
  // Only decay acts on a matrix element without gradient.
  EXPECT_NE(matrix.weight.f32()[1], 0);
}

// Several steps are compared with AdamW in double precision: moments and their corrections persist.
TEST(DistributedOptimizer, StepsMatchAdamW) {
  WithOptimizer one({"--train.clip=0", "--train.weight_decay=0.2"});
  const Config::Train& train = one.config.train;
  const Param matrix = one.engine.store().get("output.weight");
  const Index n = matrix.weight.elements();
  reference::Numbers w(matrix.weight.f32(), matrix.weight.f32() + n), m(n, 0.0), v(n, 0.0), g(n);
  const RandomStream random(2, "gradients");
  for (Index step = 1; step <= 5; ++step) {
    const double lr = 0.01 / static_cast<double>(step);
    for (Index i = 0; i < n; ++i) g[i] = matrix.grad.f32()[i] = static_cast<float>(random.normal(step * n + i));
    one.optimizer.step(train, lr, step);
    one.engine.store().finish_gradients();  // before the next gradient is written by hand
    ops::AdamW adamw{};
    adamw.beta1 = static_cast<float>(train.beta1);
    adamw.beta2 = static_cast<float>(train.beta2);
    adamw.eps = static_cast<float>(train.eps);
    adamw.weight_decay = static_cast<float>(train.weight_decay);
    const double s = static_cast<double>(step);
    reference::adamw(adamw, 1, {lr, 1 - std::pow(train.beta1, s), 1 - std::pow(train.beta2, s)}, g, w, m, v);
    for (Index i = 0; i < n; ++i) ASSERT_NEAR(matrix.weight.f32()[i], w[i], 1e-6) << "step " << step;
  }
}

// The momentum persists over steps, and the gradient is clipped before it enters the momentum.
TEST(DistributedOptimizer, StepsMatchSgd) {
  WithOptimizer one({"--train.optimizer=sgd", "--train.momentum=0.8", "--train.clip=2", "--train.weight_decay=0.2"});
  const Config::Train& train = one.config.train;
  const Param matrix = one.engine.store().get("output.weight");
  const Index n = matrix.weight.elements();
  reference::Numbers w(matrix.weight.f32(), matrix.weight.f32() + n), m(n, 0.0), g(n);
  const RandomStream random(2, "gradients");
  for (Index step = 1; step <= 5; ++step) {
    const double lr = 0.01 / static_cast<double>(step);
    for (Index i = 0; i < n; ++i) g[i] = matrix.grad.f32()[i] = static_cast<float>(random.normal(step * n + i));
    one.optimizer.step(train, lr, step);
    one.engine.store().finish_gradients();
    ASSERT_GT(one.optimizer.gradient_norm(), 2);
    reference::momentum_update(0.8, 2 / one.optimizer.gradient_norm(), g, m);
    reference::apply_update(lr, train.weight_decay, m, w);
    for (Index i = 0; i < n; ++i) ASSERT_NEAR(matrix.weight.f32()[i], w[i], 1e-6) << "step " << step;
  }
}

// Old gradients in memory do not count if no product has written the matrix's gradient since then.
TEST(DistributedOptimizer, TreatsUnwrittenGradientsAsZero) {
  WithOptimizer one({});
  const Param matrix = one.engine.store().get("output.weight");
  std::fill_n(matrix.grad.f32(), matrix.grad.elements(), 3.0f);
  one.optimizer.step(one.config.train, 0.01, 1);
  EXPECT_GT(one.optimizer.gradient_norm(), 0);
  one.optimizer.step(one.config.train, 0.01, 2);
  EXPECT_EQ(one.optimizer.gradient_norm(), 0);
}

TEST(DistributedOptimizer, SkipsNonFiniteGradients) {
  WithOptimizer one({});
  const Param matrix = one.engine.store().get("output.weight");
  const std::vector<float> before(matrix.weight.f32(), matrix.weight.f32() + matrix.weight.elements());
  matrix.grad.f32()[5] = INFINITY;
  one.optimizer.step(one.config.train, 0.01, 1);
  EXPECT_FALSE(std::isfinite(one.optimizer.gradient_norm()));
  EXPECT_EQ(before, std::vector<float>(matrix.weight.f32(), matrix.weight.f32() + matrix.weight.elements()));
}

// Values do not depend on the rank that holds them.
TEST(Store, InitializesEveryLayoutBitwiseEqual) {
  const Config config =
      parse_config("[model]\nlayers=2\nd_model=24\nheads=4\nkv_heads=2\n[moe]\nexperts=4\nd_ff=12\n", "test");
  const auto device = make_cpu();
  const auto specs = param_specs(config, 13);
  ParamStore whole(*device, specs, {}, coord_of({}, 0), false);
  whole.initialize(5);
  const Layout layout{8, 4, 2, 2};
  for (int rank = 0; rank < layout.ranks; ++rank) {
    ParamStore shard(*device, specs, layout, coord_of(layout, rank), false);
    shard.initialize(5);
    for (const ParamSpec& spec : specs) {
      const Box box = owned_box(spec.shape, spec.split, layout, coord_of(layout, rank));
      const View mine = shard.get(spec.name).weight, all = whole.get(spec.name).weight;
      for (Index i = 0; i < box.elements(); ++i)
        ASSERT_EQ(mine.f32()[i], all.f32()[test::whole_index(spec.shape, box, i)]) << spec.name;
    }
  }
}

TEST(Store, InitializesWithTheDeviationOfTheSpec) {
  const Config config = parse_config("[model]\nlayers=2\nd_model=64\nheads=4\nd_ff=128\n", "test");
  const auto device = make_cpu();
  ParamStore store(*device, param_specs(config, 300), {}, coord_of({}, 0), false);
  store.initialize(1);
  for (const auto& [name, deviation] : {std::pair{"embedding.weight", 0.02}, {"layers.1.mlp.down.weight", 0.01}}) {
    const View w = store.get(name).weight;
    double squares = 0, sum = 0;
    for (Index i = 0; i < w.elements(); ++i) {
      squares += static_cast<double>(w.f32()[i]) * w.f32()[i];
      sum += w.f32()[i];
    }
    const double n = static_cast<double>(w.elements());
    EXPECT_NEAR(std::sqrt(squares / n), deviation, 0.03 * deviation) << name;
    EXPECT_NEAR(sum / n, 0, 4 * deviation / std::sqrt(n)) << name;
  }
  EXPECT_EQ(store.get("final_norm.weight").weight.f32()[63], 1.0f);
}

}  // namespace
}  // namespace sy
