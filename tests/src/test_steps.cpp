// Training steps and evaluation passes on one rank, compared with the same ones computed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/evaluate/evaluate.h"
#include "src/evaluate/logits.h"
#include "src/numerics/reference/all.h"
#include "src/train/lr_schedule.h"
#include "src/train/trainer.h"
#include "tests/src/temp_folder.h"
#include "tests/src/two_domains.h"

namespace sy {
namespace {

constexpr const char* small_model_text = R"(
[model]
layers = 2
d_model = 8
heads = 2
seq_len = 5
[moe]
experts = 3
top_k = 1
renormalize = false
d_ff = 4
bias_update_rate = 0.01
aux_loss = 0.05
z_loss = 0.01
[train]
steps = 40
global_batch = 6
micro_batch = 2
lr = 1e-2
min_lr = 1e-3
warmup = 3
)";
constexpr Index small_vocab = 23;

// Writes a domain of `train` training tokens and `valid` validation tokens.
Dataset make_dataset(const TempFolder& folder, Index train, Index valid) {
  DatasetDescription description;
  description.tokenizer = "none";
  description.vocab = small_vocab;
  const RandomStream random(3, "tokens");
  for (const auto& [split, size] : {std::pair{".train", train}, std::pair{".valid", valid}}) {
    IndexedWriter writer(folder.path() / (std::string("a") + split), small_vocab);
    std::vector<std::int32_t> ids;
    for (Index i = 0; i < size; ++i) ids.push_back(static_cast<std::int32_t>(random.bits(i) % small_vocab));
    writer.add(ids);
    writer.finish();
  }
  description.domains.push_back({"a", 1, train, 1, valid});
  folder.write("dataset.ini", to_ini(description));
  return Dataset(folder.path());
}

struct OneRank {
  explicit OneRank(const Config& config)
      : self(make_comm_self()), engine(config, small_vocab, make_cpu(), make_mesh(*self, {}), true) {
    engine.store().initialize(config.train.seed);
  }
  std::unique_ptr<Comm> self;
  Engine engine;
};

// Step n trains on global_batch samples from n * global_batch on, over several epochs, at the rate
// of step n + 1. The bias of an expert rises by bias_update_rate if it got less than its share of
// the layer's assignments. It falls if the expert got more.
TEST(Trainer, StepsEqualAHandWrittenLoop) {
  const Config config = parse_config(small_model_text, "test");
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder, 301, 0);
  const SampleStream samples(dataset, 5, config.train.seed);
  OneRank trained(config), by_hand(config);
  Trainer trainer(trained.engine, samples);
  DistributedOptimizer optimizer(by_hand.engine.mesh(), by_hand.engine.store());
  std::vector<float> bias(2 * 3, 0.0f);
  for (Index step = 0; step < config.train.steps; ++step) {
    const StepResult result = trainer.step();

    for (Index micro = 0; micro < 3; ++micro) {
      std::vector<std::int32_t> ids, targets;
      for (Index i = 0; i < 2; ++i) {
        SampleBatch sample(5, {}, 1);
        samples.read(step * 6 + micro * 2 + i, sample[0]);
        ids.insert(ids.end(), sample.ids.begin(), sample.ids.end());
        targets.insert(targets.end(), sample.targets.begin(), sample.targets.end());
      }
      by_hand.engine.forward_backward({2, 5, ids, targets, 30, 6, 3});
    }
    optimizer.step(config.train, learning_rate(config.train, step + 1), step + 1);
    const Statistics found = by_hand.engine.take_statistics();
    for (std::size_t l = 0; l < found.layers.size(); ++l)
      for (std::size_t e = 0; e < 3; ++e) {
        const Index routed = found.layers[l].routed[e], share = 30 / 3;
        bias[l * 3 + e] += routed < share ? 0.01f : routed > share ? -0.01f : 0.0f;
        ASSERT_EQ(result.routed[l][e], routed) << "step " << step + 1;
        ASSERT_EQ(result.dropped[l][e], found.layers[l].dropped[e]) << "step " << step + 1;
        ASSERT_EQ(result.probability[l][e], found.layers[l].probability[e] / 30) << "step " << step + 1;
      }
    double aux_loss = 0, z_loss = 0;
    for (const RouterStats& s : found.layers) {
      aux_loss += s.aux_loss;
      z_loss += s.z_loss;
    }
    by_hand.engine.set_router_bias(bias);

    ASSERT_EQ(result.metrics.step, step + 1);
    ASSERT_EQ(result.metrics.tokens, (step + 1) * 30);
    ASSERT_EQ(result.metrics.lr, learning_rate(config.train, step + 1));
    ASSERT_EQ(result.metrics.loss, found.loss_sum / 30) << "step " << step + 1;
    ASSERT_EQ(result.metrics.aux_loss, aux_loss) << "step " << step + 1;
    ASSERT_EQ(result.metrics.z_loss, z_loss) << "step " << step + 1;
    ASSERT_EQ(trained.engine.router_bias(), bias) << "step " << step + 1;
  }
}

// Batches of 6, 2 and 10 sequences follow each other in the order of the samples. A trainer that
// continues from the numbers of steps, samples and tokens goes on with the same ones.
TEST(Trainer, ChangesTheBatchAtTheStepsOfTheRamp) {
  const Config config = parse_config(small_model_text, "test", {"--train.batch_ramp=3:2, 5:10", "--train.steps=6"});
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder, 301, 0);
  const SampleStream samples(dataset, 5, config.train.seed);
  OneRank trained(config), by_hand(config);
  Trainer trainer(trained.engine, samples);
  DistributedOptimizer optimizer(by_hand.engine.mesh(), by_hand.engine.store());
  Index done = 0;
  for (Index step = 1; step <= 6; ++step) {
    const StepResult result = trainer.step();
    const Index batch = step < 3 ? 6 : step < 5 ? 2 : 10;
    SampleBatch by_sequence(5, config.data, batch);
    for (Index i = 0; i < batch; ++i) samples.read(done + i, by_sequence[i]);
    for (Index micro = 0; micro < batch / 2; ++micro) {
      const Sample sample = by_sequence.slice(2 * micro, 2);
      by_hand.engine.forward_backward({2, 5, sample.ids, sample.targets, batch * 5, batch, batch / 2});
    }
    optimizer.step(config.train, learning_rate(config.train, step), step);
    const Statistics found = by_hand.engine.take_statistics();
    done += batch;
    ASSERT_EQ(result.metrics.loss, found.loss_sum / static_cast<double>(batch * 5)) << step;
    ASSERT_EQ(result.metrics.tokens, done * 5) << step;
    ASSERT_EQ(trainer.samples_done(), done) << step;
    for (std::size_t l = 0; l < found.layers.size(); ++l)
      for (std::size_t e = 0; e < 3; ++e)
        ASSERT_EQ(result.probability[l][e], found.layers[l].probability[e] / static_cast<double>(batch * 5));
    by_hand.engine.set_router_bias(trained.engine.router_bias());
  }
}

// Writes a domain whose documents have 1 to `longest` tokens.
Dataset make_documents(const TempFolder& folder, Index documents, Index longest) {
  DatasetDescription description;
  description.tokenizer = "none";
  description.vocab = small_vocab;
  const RandomStream random(3, "documents");
  Index tokens = 0;
  for (const char* split : {".train", ".valid"}) {
    IndexedWriter writer(folder.path() / (std::string("a") + split), small_vocab);
    tokens = 0;
    for (Index d = 0; d < documents; ++d) {
      std::vector<std::int32_t> ids;
      for (Index i = 0; i <= d % longest; ++i)
        ids.push_back(static_cast<std::int32_t>(random.bits(tokens++) % small_vocab));
      writer.add(ids);
    }
    writer.finish();
  }
  description.domains.push_back({"a", documents, tokens, documents, tokens});
  folder.write("dataset.ini", to_ini(description));
  return Dataset(folder.path());
}

// The loss, its gradient and the output z-loss are means over the targets of the global batch that
// the loss counts. The losses of the routers are those of all tokens.
TEST(Trainer, AveragesOverTheCountedTargets) {
  const Config config =
      parse_config(small_model_text, "test",
                   {"--data.mask_eod_loss=true", "--train.steps=5", "--train.z_loss=0.1", "--moe.bias_update_rate=0"});
  const TempFolder folder;
  const Dataset dataset = make_documents(folder, 40, 9);
  const SampleStream samples(dataset, 5, config.train.seed, config.data);
  OneRank trained(config), by_hand(config);
  Trainer trainer(trained.engine, samples);
  DistributedOptimizer optimizer(by_hand.engine.mesh(), by_hand.engine.store());
  for (Index step = 0; step < config.train.steps; ++step) {
    const StepMetrics m = trainer.step().metrics;
    SampleBatch batch(5, config.data, 6);
    for (Index i = 0; i < 6; ++i) samples.read(step * 6 + i, batch[i]);
    const Index counted = 30 - std::ranges::count(batch.targets, -1);
    ASSERT_GT(counted, 15);
    ASSERT_LT(counted, 30);
    for (Index i = 0; i < 3; ++i) {
      const Sample micro = batch.slice(2 * i, 2);
      by_hand.engine.forward_backward({2, 5, micro.ids, micro.targets, counted, 6, 3});
    }
    optimizer.step(config.train, learning_rate(config.train, step + 1), step + 1);
    const Statistics found = by_hand.engine.take_statistics();
    const auto losses = static_cast<double>(counted);
    double aux_loss = 0, z_loss = 0.1 * found.lse_square_sum / losses;
    for (const RouterStats& s : found.layers) {
      aux_loss += s.aux_loss;
      z_loss += s.z_loss;
    }
    EXPECT_EQ(m.loss, found.loss_sum / losses) << "step " << step + 1;
    EXPECT_EQ(m.aux_loss, aux_loss) << "step " << step + 1;
    EXPECT_NEAR(m.z_loss, z_loss, 1e-12) << "step " << step + 1;
    EXPECT_EQ(m.grad_norm, optimizer.gradient_norm()) << "step " << step + 1;
    EXPECT_EQ(m.tokens, (step + 1) * 30);
  }
}

TEST(Trainer, RefusesAStepWithoutACountedTarget) {
  const Config config = parse_config(small_model_text, "test", {"--data.mask_eod_loss=true"});
  const TempFolder folder;
  const Dataset dataset = make_documents(folder, 40, 1);
  const SampleStream samples(dataset, 5, config.train.seed, config.data);
  OneRank rank(config);
  Trainer trainer(rank.engine, samples);
  try {
    trainer.step();
    FAIL();
  } catch (const CollectiveError& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("step 1: no loss counts any of its 30 targets"), std::string::npos);
  }
  EXPECT_EQ(trainer.steps_done(), 0);
}

// The tokens of an evaluation are the targets that the loss counts.
TEST(Evaluation, CountsNoFirstTokenOfADocument) {
  const TempFolder folder;
  const Dataset dataset = make_documents(folder, 40, 9);
  OneRank all(parse_config(small_model_text, "test")),
      some(parse_config(small_model_text, "test", {"--data.mask_eod_loss=true"}));
  const EvalStream stream(dataset, 0, 5, 0, some.engine.config().data);
  SampleBatch sample(5, some.engine.config().data, 1);
  for (Index i = 0; i < stream.windows(); ++i) {
    stream.read(i, sample[0]);
    const auto n = static_cast<std::size_t>(stream.length(i));
    some.engine.evaluate({1, stream.length(i), std::span(sample.ids).first(n), std::span(sample.targets).first(n)},
                         true);
  }
  const double nats = some.engine.take_statistics().loss_sum;
  const DomainScore a = evaluate(all.engine, dataset, {}, [](Index, Index) {})[0];
  const DomainScore b = evaluate(some.engine, dataset, {}, [](Index, Index) {})[0];
  EXPECT_EQ(b.tokens, dataset.domains()[0].valid_tokens - 40);
  EXPECT_EQ(a.tokens, b.tokens + 39);
  EXPECT_NEAR(b.nats, nats, 1e-6 * nats);
  EXPECT_LT(b.nats, a.nats);
  EXPECT_EQ(a.experts, b.experts);
}

// Every token except the first is predicted once, from the tokens before it in its window. The last
// window may have any length.
TEST(Evaluation, CountsEveryTokenOnce) {
  const Config config = parse_config(small_model_text, "test", {"--train.seed=4"});
  OneRank rank(config);
  for (const Index size : {0, 1, 2, 5, 6, 7, 15, 16, 17, 19, 21}) {
    const TempFolder folder;
    const Dataset dataset = make_dataset(folder, 11, size);
    const EvalStream stream(dataset, 0, 5);
    double nats = 0;
    std::vector<std::vector<Index>> experts(2, std::vector<Index>(3));
    for (Index at = 0; at + 1 < size; at += 5) {
      const auto n = static_cast<std::size_t>(std::min<Index>(5, size - 1 - at));
      SampleBatch window(5, {}, 1);
      stream.read(at / 5, window[0]);
      rank.engine.evaluate(
          {1, static_cast<Index>(n), std::span(window.ids).first(n), std::span(window.targets).first(n)}, true);
      const Statistics found = rank.engine.take_statistics();
      nats += found.loss_sum;
      for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t e = 0; e < 3; ++e) experts[l][e] += found.layers[l].routed[e];
    }
    const std::vector<DomainScore> scores =
        evaluate(rank.engine, dataset, {.windows_per_pass = 2}, [](Index, Index) {});
    ASSERT_EQ(scores.size(), 1u);
    EXPECT_EQ(scores[0].tokens, std::max<Index>(0, size - 1)) << size;
    EXPECT_NEAR(scores[0].nats, nats, 1e-6 * nats) << size;
    EXPECT_EQ(scores[0].experts, experts) << size;
  }
}

// Every token except the first is predicted once. The first window that reaches it predicts it from
// the window's tokens before it, as the logits of these tokens alone do. Adjacent windows are
// bitwise those with a stride of their length.
TEST(Evaluation, SupportsOverlappingWindows) {
  OneRank rank(parse_config(small_model_text, "test", {"--train.seed=4"}));
  const auto surprise = [&](std::span<const std::int32_t> before, std::int32_t token) {
    const std::vector<float> all = sequence_logits(rank.engine, before, [](Index, Index) {});
    const auto last = std::span(all).last(small_vocab);
    double sum = 0;
    for (const float z : last) sum += std::exp(static_cast<double>(z));
    return std::log(sum) - last[static_cast<std::size_t>(token)];
  };
  for (const Index size : {0, 1, 2, 4, 6, 7, 11, 21, 22}) {
    const TempFolder folder;
    const Dataset dataset = make_dataset(folder, 11, size);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(size));
    if (size > 0) dataset.open(0, SplitName::valid).read(0, small_vocab, ids);
    for (const Index stride : {1, 2, 3, 5}) {
      double nats = 0;
      std::set<Index> windows;
      for (Index t = 1; t < size; ++t) {
        Index begin = 0;
        while (begin + 5 < t) begin += stride;
        windows.insert(begin);
        nats += surprise(std::span(ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(t - begin)),
                         ids[static_cast<std::size_t>(t)]);
      }
      const DomainScore score =
          evaluate(rank.engine, dataset, {.windows_per_pass = 2, .stride = stride}, [](Index, Index) {})[0];
      EXPECT_EQ(score.tokens, std::max<Index>(0, size - 1)) << size << " by " << stride;
      EXPECT_EQ(score.windows, std::ssize(windows)) << size << " by " << stride;
      EXPECT_NEAR(score.nats, nats, 1e-5 * nats) << size << " by " << stride;
      if (stride < 5) continue;
      const DomainScore is_contiguous = evaluate(rank.engine, dataset, {.windows_per_pass = 2}, [](Index, Index) {})[0];
      EXPECT_EQ(score.nats, is_contiguous.nats);
      EXPECT_EQ(score.experts, is_contiguous.experts);
    }
  }
}

// Without --capacity no token is dropped, also if the model was trained with drops. With it,
// evaluation drops as many as training.
TEST(Evaluation, DropsOnlyIfRequested) {
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder, 11, 51);
  double nats[2][2];
  for (const bool tight : {false, true}) {
    OneRank rank(
        parse_config(small_model_text, "test", {std::string("--moe.capacity_factor=") + (tight ? "0.5" : "0")}));
    for (const bool dropless : {false, true})
      nats[tight][dropless] = evaluate(rank.engine, dataset, {.dropless = dropless}, [](Index, Index) {})[0].nats;
  }
  EXPECT_EQ(nats[true][true], nats[false][true]);
  EXPECT_EQ(nats[false][false], nats[false][true]);
  EXPECT_NE(nats[true][false], nats[true][true]);
}

// The first, third and fifth of seven windows are evaluated.
TEST(Evaluation, SpreadsSelectedWindowsEvenly) {
  OneRank rank(parse_config(small_model_text, "test"));
  const TempFolder folder;
  const Dataset dataset = make_dataset(folder, 11, 36);
  const EvalStream stream(dataset, 0, 5);
  SampleBatch sample(5, {}, 1);
  for (const Index window : {0, 2, 4}) {
    stream.read(window, sample[0]);
    rank.engine.evaluate({1, 5, sample.ids, sample.targets}, true);
  }
  const double nats = rank.engine.take_statistics().loss_sum;
  const DomainScore score = evaluate(rank.engine, dataset, {.max_windows = 3}, [](Index, Index) {})[0];
  EXPECT_EQ(score.tokens, 15);
  EXPECT_NEAR(score.nats, nats, 1e-6 * nats);
}

// Two trainings with different micro-batches diverge. In the first step, AdamW with eps = 1e-8
// turns the rounding of one gradient of 1e-8 into a difference of 2e-5 of its weight. From the same
// weights, each step gives the same choices, drops and gradient.
TEST(MicroBatches, OfAnySizeGiveTheSameGradient) {
  const TempFolder folder;
  const Dataset data = test::make_dataset(folder);
  const auto self = make_comm_self();
  struct Training {
    Training(Comm& self, const Dataset& data, const std::string& micro_batch)
        : config(parse_config(
              "[model]\nlayers = 3\nd_model = 24\nheads = 4\nkv_heads = 2\nseq_len = 20\nd_ff = 40\n"
              "tie_embeddings = true\nbias = true\nnorm = layernorm\n[moe]\nexperts = 8\ntop_k = 1\n"
              "every = 2\nfirst_dense = 1\nd_ff = 20\ncapacity_factor = 1\naux_loss = 0.05\nz_loss = 0.01\n"
              "[train]\nsteps = 20\nglobal_batch = 8\nlr = 5e-3\nmin_lr = 1e-3\nwarmup = 4\nz_loss = 1e-3\n",
              "test", {"--train.micro_batch=" + micro_batch})),
          engine(config, data.vocab(), make_cpu(), make_mesh(self, {}), true),
          samples(data, config.model.seq_len, config.train.seed, config.data),
          trainer(engine, samples) {
      engine.store().initialize(config.train.seed);
      engine.set_routing_hook([this](const RoutingView& r) {
        experts.insert(experts.end(), r.experts.i32(), r.experts.i32() + r.experts.elements());
      });
    }
    const Config config;
    Engine engine;
    const SampleStream samples;
    Trainer trainer;
    std::vector<std::int32_t> experts;  // of the tokens of a step
  } one(*self, data, "1"), eight(*self, data, "8");
  for (int step = 1; step <= 8; ++step) {
    const StepResult a = one.trainer.step(), b = eight.trainer.step();
    EXPECT_EQ(one.experts, eight.experts) << "step " << step;
    EXPECT_EQ(a.dropped, b.dropped) << "step " << step;
    EXPECT_NEAR(a.metrics.grad_norm, b.metrics.grad_norm, 1e-7 * a.metrics.grad_norm) << "step " << step;
    one.experts.clear();
    eight.experts.clear();
    for (const ParamSpec& spec : one.engine.store().specs()) {
      const ConstView from = one.engine.store().get(spec.name).weight;
      std::copy_n(from.f32(), from.elements(), eight.engine.store().get(spec.name).weight.f32());
    }
    eight.engine.store().packed_weights().invalidate();
  }
}

}  // namespace
}  // namespace sy
