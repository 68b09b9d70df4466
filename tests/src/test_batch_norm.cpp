// Batch normalisation in whole models: evaluation by running averages, padding, recomputation,
// checkpoints, and the settings that it refuses. test_model.cpp compares gradients, and
// mpi_layouts.cpp layouts.
#include <gtest/gtest.h>

#include <numeric>

#include "src/io/checkpoint.h"
#include "src/model/engine.h"
#include "src/train/trainer.h"
#include "tests/src/gradient_check.h"
#include "tests/src/reference_model.h"
#include "tests/src/temp_folder.h"
#include "tests/src/two_domains.h"

namespace sy {
namespace {

using reference::Numbers;

constexpr const char* batch_norm_encoder = R"(
[model]
kind = encoder
mask_token = 36
layers = 2
d_model = 12
heads = 3
d_ff = 20
seq_len = 9
norm = batchnorm
norm_position = post
norm_bias = true
embedding_norm = true
[train]
steps = 30
global_batch = 8
micro_batch = 4
mask_rate = 0.3
lr = 1e-2
warmup = 3
)";
constexpr Index norm_vocab = 37;

struct BatchNormModel {
  explicit BatchNormModel(const std::vector<std::string>& settings, Index slots = 1)
      : config(parse_config(batch_norm_encoder, "test", settings)),
        self(make_comm_self()),
        engine(config, norm_vocab, make_cpu(), make_mesh(*self, {}), true, {}, slots) {
    engine.store().initialize(config.train.seed);
    for (const ParamSpec& spec : engine.store().specs()) {
      const View w = engine.store().get(spec.name).weight;
      const RandomStream random(11, spec.name);
      Numbers values(static_cast<std::size_t>(w.elements()));
      for (Index i = 0; i < w.elements(); ++i) {
        w.f32()[i] = static_cast<float>((spec.init.kind == InitKind::ones ? 1.0 : 0.0) + 0.3 * random.normal(i));
        values[static_cast<std::size_t>(i)] = static_cast<double>(w.f32()[i]);
      }
      parameters[spec.name] = values;
    }
    engine.store().packed_weights().invalidate();
  }
  // Gradients of all parameters.
  std::vector<float> gradients() {
    engine.store().finish_gradients();
    std::vector<float> all;
    for (const ParamSpec& spec : engine.store().specs()) {
      const View grad = engine.store().get(spec.name).grad;
      all.insert(all.end(), grad.f32(), grad.f32() + grad.elements());
    }
    return all;
  }

  Config config;
  std::unique_ptr<Comm> self;
  Engine engine;
  reference::Parameters parameters;
};

// Sequences with a target for every third token. If `padded`, sequence b ends with 2 b tokens of
// padding, which are a document of their own.
struct NormBatch {
  std::vector<std::int32_t> ids, targets, document_start;
  Index targets_count = 0, sequences, seq_len;
  NormBatch(const Config& config, bool padded, Index first = 0)
      : sequences(config.train.micro_batch), seq_len(config.model.seq_len) {
    const RandomStream draw(3, "tokens");
    for (Index b = 0; b < sequences; ++b)
      for (Index i = 0; i < seq_len; ++i) {
        const bool is_padding = padded && i >= seq_len - 2 * b;
        document_start.push_back(is_padding ? static_cast<std::int32_t>(seq_len - 2 * b) : 0);
        const Index at = first + b * seq_len + i;
        ids.push_back(is_padding ? -1 : static_cast<std::int32_t>(draw.bits(at) % norm_vocab));
        const bool counts = !is_padding && i % 3 == 1;
        targets.push_back(counts ? static_cast<std::int32_t>(draw.bits(1000 + at) % norm_vocab) : -1);
        targets_count += counts;
      }
  }
  Engine::MicroBatch micro_batch(Index step_targets) const {
    return {sequences, seq_len, ids, targets, step_targets, sequences, 1, 0, document_start};
  }
  reference::Model reference(const Config& config) const {
    return {config, norm_vocab, sequences, {ids.begin(), ids.end()}, {targets.begin(), targets.end()}};
  }
};

TEST(BatchNorm, StatisticsLeaveOutPadding) {
  BatchNormModel model({});
  const NormBatch batch(model.config, true);
  model.engine.forward_backward(batch.micro_batch(batch.targets_count));
  reference::Model reference = batch.reference(model.config);
  const reference::ModelLoss expected = reference.loss(model.parameters, false);
  const double count = static_cast<double>(batch.targets_count);
  EXPECT_NEAR(model.engine.take_statistics().loss_sum / count, expected.cross_entropy, 2e-6 * expected.cross_entropy);
  for (const auto& [name, moments] : reference.moments_of_batch_norms()) EXPECT_EQ(moments.count, 36 - 12) << name;
  model.engine.store().finish_gradients();
  for (const ParamSpec& spec : model.engine.store().specs()) {
    const View grad = model.engine.store().get(spec.name).grad;
    const RandomStream random(5, spec.name);
    Numbers direction(static_cast<std::size_t>(grad.elements()));
    for (std::size_t i = 0; i < direction.size(); ++i) direction[i] = random.normal(static_cast<Index>(i));
    expect_derivative(
        grad, model.parameters[spec.name], direction, [&] { return reference.loss(model.parameters, true).total(); },
        1e-4, spec.name);
  }
}

// Means and variances of two training passes, with the weights 0.81, 0.09 and 0.1 of their start,
// the first and the second pass.
TEST(BatchNorm, EvaluationReadsTheRunningAverages) {
  BatchNormModel model({});
  std::map<std::string, reference::ColumnMoments> expected;
  for (const Index first : {0, 100}) {
    const NormBatch batch(model.config, first > 0, first);
    model.engine.forward_backward(batch.micro_batch(batch.targets_count));
    reference::Model reference = batch.reference(model.config);
    reference.loss(model.parameters, false);
    for (const auto& [name, moments] : reference.moments_of_batch_norms()) {
      reference::ColumnMoments& average = expected[name];
      average.mean.resize(12, 0.0);
      average.variance.resize(12, 1.0);
      for (std::size_t i = 0; i < 12; ++i) {
        average.mean[i] += 0.1 * (moments.mean[i] - average.mean[i]);
        average.variance[i] += 0.1 * (moments.variance[i] * moments.count / (moments.count - 1) - average.variance[i]);
      }
    }
  }
  model.engine.take_statistics();
  const std::vector<float> averages = model.engine.batch_norm_averages();
  const NormBatch batch(model.config, true, 200);
  const double count = static_cast<double>(batch.targets_count);
  reference::Model reference = batch.reference(model.config);
  const double of_batch = reference.loss(model.parameters, false).cross_entropy;
  reference.set_moments_of_batch_norms(expected);
  const double of_averages = reference.loss(model.parameters, false).cross_entropy;
  ASSERT_GT(std::abs(of_batch - of_averages), 1e-3);
  model.engine.evaluate(batch.micro_batch(batch.targets_count), true);
  EXPECT_NEAR(model.engine.take_statistics().loss_sum / count, of_averages, 1e-5 * of_averages);
  EXPECT_EQ(model.engine.batch_norm_averages(), averages) << "evaluation changed the averages";

  // A sequence alone has the same logits as in its batch.
  const std::vector<float> together =
      model.engine.logits({batch.sequences, batch.seq_len, batch.ids, {}, 1, 1, 1, 0, batch.document_start});
  const std::vector<float> alone = model.engine.logits({1,
                                                        batch.seq_len,
                                                        std::span(batch.ids).last(batch.seq_len),
                                                        {},
                                                        1,
                                                        1,
                                                        1,
                                                        0,
                                                        std::span(batch.document_start).last(batch.seq_len)});
  const auto last = together.end() - static_cast<std::ptrdiff_t>(alone.size());
  for (std::size_t i = 0; i < alone.size(); ++i)
    EXPECT_NEAR(alone[i], last[static_cast<std::ptrdiff_t>(i)], 1e-5 * (1 + std::abs(alone[i]))) << i;
}

// A second forward of backward reads the statistics of the first, and leaves the averages.
TEST(BatchNorm, RecomputationUpdatesTheAveragesOnce) {
  std::vector<float> gradients, averages;
  for (const char* mode : {"none", "norms", "experts", "attention", "block"}) {
    BatchNormModel model({std::string("--train.recompute=") + mode});
    const NormBatch batch(model.config, true);
    model.engine.forward(batch.micro_batch(batch.targets_count));
    const std::vector<float> after_forward = model.engine.batch_norm_averages();
    model.engine.backward();
    EXPECT_EQ(model.engine.batch_norm_averages(), after_forward) << mode;
    if (gradients.empty()) {
      gradients = model.gradients();
      averages = after_forward;
    }
    EXPECT_EQ(model.gradients(), gradients) << mode;
    EXPECT_EQ(after_forward, averages) << mode;
  }
}

// Each micro-batch in flight has its own statistics.
TEST(BatchNorm, MicroBatchesInFlightAreIndependent) {
  BatchNormModel one({}), two({}, 2);
  const NormBatch first(one.config, false), second(one.config, true, 50);
  const Index targets = first.targets_count + second.targets_count;
  one.engine.forward_backward(first.micro_batch(targets));
  one.engine.forward_backward(second.micro_batch(targets));
  two.engine.forward(first.micro_batch(targets), 0);
  two.engine.forward(second.micro_batch(targets), 1);
  two.engine.backward(0);
  two.engine.backward(1);
  EXPECT_EQ(one.gradients(), two.gradients());
  EXPECT_EQ(one.engine.batch_norm_averages(), two.engine.batch_norm_averages());
}

struct BatchNormTraining {
  explicit BatchNormTraining(const Dataset& dataset, const std::vector<std::string>& settings = {})
      : model(settings), samples(training_samples(dataset, model.config)), trainer(model.engine, samples) {
    model.engine.store().initialize(1);
  }
  BatchNormModel model;
  SampleStream samples;
  Trainer trainer;
};

// Training, then the same with a stop after half of the steps: equal bit for bit.
TEST(BatchNorm, TinyEncoderLearnsAndResumes) {
  const TempFolder folder, run;
  const Dataset dataset = test::make_dataset(folder);
  BatchNormTraining whole(dataset), half(dataset), resumed(dataset);
  std::vector<double> losses;
  for (int i = 0; i < 30; ++i) losses.push_back(whole.trainer.step().metrics.loss);
  const auto mean = [&](std::size_t first) { return std::reduce(&losses[first], &losses[first] + 10) / 10; };
  EXPECT_LT(mean(20), mean(0) - 0.01);
  for (int i = 0; i < 15; ++i) half.trainer.step();

  TrainState state;
  state.step = 15;
  state.samples = half.trainer.samples_done();
  state.tokens = half.trainer.tokens_done();
  state.batch_norm_averages = half.model.engine.batch_norm_averages();
  state.batch_norms = count_batch_norms(half.model.engine.store().specs());
  half.model.engine.store().finish_all_gather();
  save_checkpoint(*half.model.self, run.path(), state, half.model.engine.store(), {});
  const std::filesystem::path saved = resolve_checkpoint(run.path(), nullptr);
  const TrainState read = read_state(saved);
  load_checkpoint(saved, resumed.model.engine.store());
  resumed.model.engine.set_batch_norm_averages(read.batch_norm_averages);
  resumed.trainer.set_progress(read.step, read.samples, read.tokens);
  EXPECT_EQ(resumed.model.engine.batch_norm_averages(), half.model.engine.batch_norm_averages());
  for (std::size_t i = 15; i < 30; ++i) EXPECT_EQ(resumed.trainer.step().metrics.loss, losses[i]) << i;
  EXPECT_EQ(resumed.model.engine.batch_norm_averages(), whole.model.engine.batch_norm_averages());
}

TEST(BatchNorm, RefusesAveragesOfAnotherModel) {
  BatchNormModel model({});
  std::vector<float> averages = model.engine.batch_norm_averages();
  averages.resize(averages.size() + 24, 7.0f);  // of more norms: those of multi-token prediction
  model.engine.set_batch_norm_averages(averages);
  EXPECT_EQ(model.engine.batch_norm_averages().size() + 24, averages.size());
  for (const std::size_t size : {std::size_t{0}, averages.size() - 25, averages.size() + 1})
    EXPECT_THROW(model.engine.set_batch_norm_averages(std::vector<float>(size)), InputError) << size;
  BatchNormModel other({"--model.norm=layernorm"});
  other.engine.set_batch_norm_averages({});
  EXPECT_TRUE(other.engine.batch_norm_averages().empty());
}

TEST(BatchNorm, RefusesSettingsThatItCannotHave) {
  const auto problem = [](const std::vector<std::string>& settings) {
    try {
      parse_config(batch_norm_encoder, "test", settings);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(problem({"--model.norm_offset=true"}).find("model.norm_offset = true with model.norm = batchnorm"),
            std::string::npos);
  EXPECT_NE(problem({"--train.lora_rank=2"}).find("model.norm = batchnorm with train.lora_rank = 2"),
            std::string::npos);
  EXPECT_EQ(problem({"--train.recompute=block"}), "");
}

}  // namespace
}  // namespace sy
