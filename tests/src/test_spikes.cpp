// Skipped steps (train.spike_sigma) on one rank, and the history of gradient norms.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/train/trainer.h"
#include "tests/src/temp_folder.h"
#include "tests/src/two_domains.h"

namespace sy {
namespace {

// ---- the history ----

TEST(NormHistory, LimitIsTheMeanAndTheSpreadOfTheLast128Norms) {
  NormHistory history;
  std::vector<double> all;
  for (int i = 0; i < 200; ++i) {
    const std::size_t n = std::min<std::size_t>(all.size(), 128);
    double sum = 0, squares = 0;
    for (std::size_t j = all.size() - n; j < all.size(); ++j) sum += all[j];
    const double mean = sum / static_cast<double>(n);
    for (std::size_t j = all.size() - n; j < all.size(); ++j) squares += (all[j] - mean) * (all[j] - mean);
    const double expected = mean + 2.5 * std::sqrt(squares / static_cast<double>(n - 1));
    if (n < 16)
      EXPECT_TRUE(std::isinf(history.limit(2.5))) << n;
    else
      EXPECT_NEAR(history.limit(2.5), expected, 1e-12 * expected) << n;
    EXPECT_TRUE(std::isinf(history.limit(0)));
    all.push_back(1 + std::sin(i * i) / 2);
    history.add(all.back());
  }
  EXPECT_EQ(history.norms.size(), 128u);
}

TEST(NormHistory, EqualNormsAllowRounding) {
  NormHistory history;
  for (int i = 0; i < 20; ++i) history.add(3);
  EXPECT_DOUBLE_EQ(history.limit(2), 3 + 2 * 0.01 * 3);
}

TEST(NormHistory, CountsSkippedStepsAndThoseInARow) {
  NormHistory history;
  EXPECT_TRUE(history.empty());
  history.skip();
  history.skip();
  EXPECT_EQ(history.in_a_row, 2);
  history.add(1);
  history.skip();
  EXPECT_EQ(history.skipped, 3);
  EXPECT_EQ(history.in_a_row, 1);
  EXPECT_FALSE(history.empty());
}

TEST(NormHistory, TextKeepsEveryBit) {
  NormHistory history;
  for (int i = 0; i < 130; ++i) history.add(std::exp(std::sin(i) * 40) / 3);
  history.add(0);
  history.add(std::numeric_limits<double>::denorm_min());
  history.skip();
  EXPECT_EQ(parse_norm_history(to_text(history), "x"), history);
}

TEST(NormHistory, RefusesDamagedTexts) {
  for (const char* text : {"", "{}", R"({"norms":[1],"skipped":0})", R"({"norms":[-1],"skipped":0,"in_a_row":0})",
                           R"({"norms":[null],"skipped":0,"in_a_row":0})", R"({"norms":[],"skipped":1,"in_a_row":2})",
                           R"({"norms":[],"skipped":-1,"in_a_row":-1})", R"({"norms":"x","skipped":0,"in_a_row":0})"})
    EXPECT_THROW(parse_norm_history(text, "the checkpoint"), InputError) << text;
  NormHistory history;
  for (int i = 0; i < 128; ++i) history.add(1);
  std::string text = to_text(history);
  text.insert(text.find('[') + 1, "1,");
  EXPECT_THROW(parse_norm_history(text, "the checkpoint"), InputError);
}

// ---- the trainer ----

constexpr const char* model_text = R"(
[model]
layers = 2
d_model = 16
heads = 2
seq_len = 12
[moe]
experts = 3
top_k = 1
d_ff = 8
bias_update_rate = 0.01
[train]
steps = 60
global_batch = 4
micro_batch = 2
lr = 1e-2
warmup = 3
)";

using Weights = std::vector<std::vector<float>>;

struct SpikyTraining {
  explicit SpikyTraining(const std::vector<std::string>& overrides)
      : config(parse_config(model_text, "test", overrides)),
        dataset(test::make_dataset(folder)),
        samples(dataset, config.model.seq_len, config.train.seed),
        self(make_comm_self()),
        engine(config, dataset.vocab(), make_cpu(), make_mesh(*self, {}), true),
        trainer(start(engine, config), samples) {}
  static Engine& start(Engine& engine, const Config& config) {
    engine.store().initialize(config.train.seed);
    return engine;
  }
  // Returns all weights and the optimizer state.
  Weights weights() {
    Weights all;
    for (std::size_t g = 0; g < engine.store().layout().groups.size(); ++g) {
      const ParamStore::Buffers& buffers = engine.store().buffers(g);
      const auto add = [&](const Tensor& tensor) {
        const float* const values = tensor.view().f32();
        all.emplace_back(values, values + tensor.view().elements());
      };
      add(buffers.weights);
      for (const Tensor& tensor : buffers.state) add(tensor);
    }
    all.push_back(engine.router_bias());
    all.push_back(engine.batch_norm_averages());
    return all;
  }
  float& weight(const std::string& name, Index i) { return engine.store().get(name).weight.f32()[i]; }

  TempFolder folder;
  Config config;
  Dataset dataset;
  SampleStream samples;
  std::unique_ptr<Comm> self;
  Engine engine;
  Trainer trainer;
};

TEST(SkippedSteps, OutliersLeaveWeightsAndOptimizerAsTheyAre) {
  SpikyTraining training({"--train.spike_sigma=1", "--train.max_skipped=60"});
  NormHistory expected;
  Index skipped = 0;
  for (Index step = 1; step <= 60; ++step) {
    const Weights before = training.weights();
    const StepResult result = training.trainer.step();
    EXPECT_EQ(result.norm_limit, expected.limit(1));
    EXPECT_EQ(result.skipped, result.metrics.grad_norm > expected.limit(1)) << step;
    EXPECT_EQ(training.weights() == before, result.skipped) << step;
    if (result.skipped)
      expected.skip();
    else
      expected.add(result.metrics.grad_norm);
    EXPECT_EQ(training.trainer.norms(), expected);
    EXPECT_EQ(result.metrics.skipped_steps, expected.skipped);
    EXPECT_EQ(training.trainer.steps_done(), step);
    skipped += result.skipped;
  }
  EXPECT_GT(skipped, 2);
  EXPECT_LT(skipped, 60 - NormHistory::least);
}

TEST(SkippedSteps, NoStepIsSkippedWithoutSigma) {
  SpikyTraining with({"--train.spike_sigma=1e9"}), without({});
  for (Index step = 1; step <= 20; ++step) {
    with.trainer.step();
    EXPECT_FALSE(without.trainer.step().metrics.skipped_steps);
  }
  EXPECT_EQ(with.weights(), without.weights());
  EXPECT_TRUE(without.trainer.norms().empty());
}

TEST(SkippedSteps, KeepTheRunningAveragesOfBatchNorms) {
  SpikyTraining training({"--train.spike_sigma=1000", "--model.norm=batchnorm"});
  const std::vector<float> start = training.engine.batch_norm_averages();
  training.trainer.step();
  const Weights before = training.weights();
  EXPECT_NE(before.back(), start);
  float& weight = training.weight("layers.1.attention.q.weight", 5);
  const float good = std::exchange(weight, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(training.trainer.step().skipped);
  weight = good;
  EXPECT_EQ(training.weights(), before);
  EXPECT_FALSE(training.trainer.step().skipped);
  EXPECT_NE(training.weights().back(), before.back());
}

// After the skipped step, training goes on as one that never had that step's samples. Bias
// corrections of AdamW count updates.
TEST(SkippedSteps, NormThatIsNotFiniteSkipsTheStep) {
  SpikyTraining training({"--train.spike_sigma=1000"}), expected({"--train.spike_sigma=1000"});
  for (int i = 0; i < 3; ++i) {
    training.trainer.step();
    expected.trainer.step();
  }
  float& weight = training.weight("layers.1.attention.q.weight", 5);
  const float good = std::exchange(weight, std::numeric_limits<float>::quiet_NaN());
  const StepResult result = training.trainer.step();
  EXPECT_TRUE(result.skipped);
  EXPECT_TRUE(std::isnan(result.metrics.grad_norm));
  weight = good;
  EXPECT_EQ(training.weights(), expected.weights());

  const Index tokens = expected.trainer.tokens_done();
  expected.trainer.set_progress(4, 16, tokens + 4 * 12);
  NormHistory norms = expected.trainer.norms();
  norms.skip();
  expected.trainer.set_norms(norms);
  for (int i = 0; i < 3; ++i) {
    const StepResult a = training.trainer.step(), b = expected.trainer.step();
    EXPECT_EQ(a.metrics.loss, b.metrics.loss);
    EXPECT_EQ(a.metrics.grad_norm, b.metrics.grad_norm);
  }
  EXPECT_EQ(training.weights(), expected.weights());
}

// After as many skipped steps as train.max_skipped allows, the next step measures the norm of each
// parameter. The step after it measures none.
TEST(SkippedSteps, NormsOfParametersAreMeasuredOnlyBeforeTheEnd) {
  SpikyTraining training({"--train.spike_sigma=1000", "--train.max_skipped=1"});
  training.trainer.step();
  float& weight = training.weight("layers.1.attention.q.weight", 5);
  const float good = std::exchange(weight, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(training.trainer.step().skipped);
  weight = good;
  const auto norms_after_step = [&] {
    EXPECT_FALSE(training.trainer.step().skipped);
    std::vector<double> norms;
    for (const ParamNorm& p : training.trainer.param_norms()) norms.push_back(p.norm);
    return norms;
  };
  const std::vector<double> measured = norms_after_step();
  EXPECT_GT(*std::ranges::max_element(measured), 0);
  EXPECT_EQ(norms_after_step(), measured);
  training.trainer.measure_params(true);
  EXPECT_NE(norms_after_step(), measured);
}

// Returns the error of the step that ends the run, after `skipped` skipped steps.
std::string error_after(SpikyTraining& training, Index skipped) {
  for (Index i = 0; i < skipped; ++i) EXPECT_TRUE(training.trainer.step().skipped);
  const Weights before = training.weights();
  try {
    training.trainer.step();
    ADD_FAILURE() << "no error";
  } catch (const Diverged& e) {
    return e.what();
  }
  return "";
}

TEST(SkippedSteps, TooManyInARowNameTheWeightThatIsNotFinite) {
  SpikyTraining training({"--train.spike_sigma=1000", "--train.max_skipped=2"});
  training.trainer.step();
  training.weight("layers.1.attention.q.weight", 5) = std::numeric_limits<float>::infinity();
  const std::string error = error_after(training, 2);
  EXPECT_NE(error.find("step 4: 3 steps in a row were skipped, which is more than train.max_skipped = 2"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("values of layer 1, parameter layers.1.attention.q.weight are not finite"), std::string::npos)
      << error;
}

// The weights are finite, but the logits overflow.
TEST(SkippedSteps, TooManyInARowNameTheGradientThatIsNotFinite) {
  SpikyTraining training(
      {"--train.spike_sigma=1000", "--train.max_skipped=0", "--moe.experts=0", "--moe.bias_update_rate=0"});
  training.trainer.step();
  View w = training.engine.store().get("output.weight").weight;
  std::fill_n(w.f32(), w.elements(), 3e38f);
  const std::string error = error_after(training, 0);
  EXPECT_NE(error.find("step 2: 1 steps in a row"), std::string::npos) << error;
  EXPECT_NE(error.find("the last gradient that is not finite is that of "), std::string::npos) << error;
}

// A history of small norms makes every step an outlier. The embedding has the largest gradient.
TEST(SkippedSteps, TooManyInARowNameTheLargestGradient) {
  SpikyTraining training({"--train.spike_sigma=1", "--train.max_skipped=1"});
  NormHistory small;
  for (int i = 0; i < 20; ++i) small.add(1e-9);
  training.trainer.set_norms(small);
  const std::string error = error_after(training, 1);
  double largest = 0, squares = 0;
  std::string name;
  for (const ParamNorm& p : training.trainer.param_norms()) {
    squares += p.norm * p.norm;
    if (p.norm > largest) {
      largest = p.norm;
      name = p.name;
    }
  }
  EXPECT_NE(error.find("the largest gradient, of norm "), std::string::npos) << error;
  EXPECT_NE(error.find("parameter " + name), std::string::npos) << error;
  EXPECT_NE(error.find(fmt::format("the gradient norm is {:.4g}", std::sqrt(squares))), std::string::npos) << error;
}

TEST(SkippedSteps, ParamNormsAreThoseOfTheGradients) {
  SpikyTraining training({}), by_hand({});
  training.trainer.measure_params(true);
  const StepResult result = training.trainer.step();
  std::vector<std::int32_t> ids, targets;
  for (Index i = 0; i < 4; ++i) {
    SampleBatch sample(12, {}, 1);
    by_hand.samples.read(i, sample[0]);
    ids.insert(ids.end(), sample.ids.begin(), sample.ids.end());
    targets.insert(targets.end(), sample.targets.begin(), sample.targets.end());
  }
  by_hand.engine.forward_backward({4, 12, ids, targets, 48, 4, 1});
  by_hand.engine.store().finish_gradients();
  double squares = 0;
  for (const ParamNorm& p : training.trainer.param_norms()) {
    double sum = 0;
    const View g = by_hand.engine.store().get(p.name).grad;
    for (Index i = 0; i < g.elements(); ++i) sum += static_cast<double>(g.f32()[i]) * g.f32()[i];
    EXPECT_NEAR(p.norm, std::sqrt(sum), 1e-5 * std::sqrt(sum) + 1e-9) << p.name;
    squares += p.norm * p.norm;
  }
  EXPECT_NEAR(std::sqrt(squares), result.metrics.grad_norm, 1e-9 * result.metrics.grad_norm);
}

}  // namespace
}  // namespace sy
