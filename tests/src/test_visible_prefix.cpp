// Prefix language modelling with a decoder: the chosen prefixes, the loss and its gradients, and
// generation whose prompt is the prefix.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/data/visible_prefix.h"
#include "src/evaluate/logits.h"
#include "src/generate/generate.h"
#include "tests/src/gradient_check.h"
#include "tests/src/reference_model.h"
#include "tests/src/temp_folder.h"
#include "tests/src/two_domains.h"

namespace sy {
namespace {

using reference::Numbers;

// ---- samples ----

TEST(VisiblePrefix, HasUniformLengthsAndTargetsAfterIt) {
  constexpr Index tokens = 9;
  const VisiblePrefix prefix(RandomStream(5, "test"));
  std::vector<Index> count(tokens);
  constexpr Index samples = 8000;
  for (Index sample = 0; sample < samples; ++sample) {
    SampleBatch batch(tokens, {}, 1, true);
    for (Index i = 0; i < tokens; ++i) {
      batch.ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
      batch.targets[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i + 1);
    }
    const SampleBatch before = batch;
    prefix.apply(batch[0], sample * tokens);
    EXPECT_EQ(batch.ids, before.ids);
    const Index end = batch.prefix_end[0];
    ASSERT_TRUE(end >= 1 && end < tokens) << end;
    ++count[static_cast<std::size_t>(end)];
    for (Index i = 0; i < tokens; ++i) {
      EXPECT_EQ(batch.prefix_end[static_cast<std::size_t>(i)], end);
      EXPECT_EQ(batch.targets[static_cast<std::size_t>(i)], i + 1 < end ? -1 : i + 1) << end;
    }
  }
  const double mean = samples / static_cast<double>(tokens - 1);
  for (Index length = 1; length < tokens; ++length)
    EXPECT_NEAR(static_cast<double>(count[static_cast<std::size_t>(length)]), mean, 5 * std::sqrt(mean)) << length;
}

TEST(VisiblePrefix, AcceptsDocumentsOfOneAndTwoTokens) {
  Config::Data packed;
  packed.documents = Documents::pack;
  SampleBatch batch(4, packed, 1, true);
  batch.document_start = {0, 1, 1, 3};
  batch.targets = {-1, 7, -1, -1};
  VisiblePrefix(RandomStream(5, "test")).apply(batch[0], 0);
  EXPECT_EQ(batch.prefix_end, (std::vector<std::int32_t>{1, 2, 2, 4}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{-1, 7, -1, -1}));
}

Config prefix_config(const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings{"--model.layers=2",        "--model.d_model=16",     "--model.heads=2",
                                    "--model.seq_len=16",      "--train.global_batch=8", "--train.micro_batch=4",
                                    "--train.objective=prefix"};
  settings.insert(settings.end(), more.begin(), more.end());
  return parse_config("", "test", settings);
}

TEST(VisiblePrefix, LeavesTheSamplesAndTheirLaterTargets) {
  const TempFolder folder;
  const Dataset data = test::make_dataset(folder);
  for (const char* documents : {"join", "mask", "pack"}) {
    SCOPED_TRACE(documents);
    const Config config = prefix_config({std::string("--data.documents=") + documents});
    const SampleStream samples = training_samples(data, config),
                       plain(data, config.model.seq_len, config.train.seed, config.data);
    EXPECT_TRUE(samples.ignores_targets());
    Index predicted = 0;
    for (Index i = 0; i < 200; ++i) {
      SampleBatch got(config, 1), want(config.model.seq_len, config.data, 1);
      EXPECT_EQ(samples.read(i, got[0]), plain.read(i, want[0]));
      ASSERT_EQ(got.ids, want.ids);
      ASSERT_EQ(got.document_start, want.document_start);
      for (std::size_t t = 0; t < got.ids.size(); ++t) {
        const auto at = static_cast<std::int32_t>(t);
        const std::int32_t begin = got.document_start.empty() ? 0 : got.document_start[t], end = got.prefix_end[t];
        ASSERT_TRUE(end > begin && end <= std::ssize(got.ids));
        ASSERT_TRUE(t == 0 || end >= got.prefix_end[t - 1]);
        // The prefix is in the token's own document.
        if (!got.document_start.empty()) {
          ASSERT_EQ(got.document_start[static_cast<std::size_t>(end - 1)], begin);
        }
        ASSERT_EQ(got.targets[t], at + 1 < end ? -1 : want.targets[t]);
        predicted += got.targets[t] >= 0;
      }
    }
    EXPECT_GT(predicted, 200);
    SampleBatch again(config, 1), other(config, 1);
    samples.read(3, again[0]);
    training_samples(data, prefix_config({std::string("--data.documents=") + documents, "--train.seed=2"}))
        .read(3, other[0]);
    EXPECT_NE(again.prefix_end, other.prefix_end);
  }
}

TEST(VisiblePrefix, OfValidationIsTheSameInEveryRun) {
  const TempFolder folder;
  const Dataset data = test::make_dataset(folder);
  const auto read = [&](const std::vector<std::string>& settings) {
    const Config config = prefix_config(settings);
    const EvalStream stream(data, 0, config.model.seq_len, 0, config.data, nullptr, nullptr, true);
    SampleBatch all(config, stream.windows());
    for (Index i = 0; i < stream.windows(); ++i) stream.read(i, all[i]);
    return all;
  };
  const SampleBatch one = read({});
  EXPECT_EQ(one, read({"--train.seed=9"}));
  EXPECT_GT(std::ranges::count_if(one.targets, [](std::int32_t id) { return id >= 0; }), 0);
}

// ---- loss and gradients ----

struct Case {
  const char* name;
  std::vector<std::string> settings;
};
const Case cases[] = {
    {"rope", {}},
    {"experts",
     {"--moe.experts=5", "--moe.top_k=2", "--moe.d_ff=9", "--moe.capacity_factor=0.8", "--moe.aux_loss=0.3"}},
    {"alibi", {"--model.position=alibi"}},
    {"t5_sinks",
     {"--model.position=t5", "--model.t5_buckets=6", "--model.t5_max_distance=6", "--model.attention_sinks=true"}},
    {"t5_of_each_layer",
     {"--model.position=t5", "--model.t5_shared=false", "--model.t5_buckets=4", "--model.t5_max_distance=4"}},
    {"learned_cap_qk_norm",
     {"--model.position=learned", "--model.attention_softcap=1.5", "--model.qk_norm=true", "--model.bias=all"}},
    {"latent", {"--model.kv_heads=0", "--model.kv_lora_rank=5", "--model.qk_rope_head_dim=4"}},
};

constexpr const char* base = R"(
[model]
layers = 2
d_model = 12
heads = 4
kv_heads = 2
head_dim = 6
d_ff = 10
seq_len = 7
[train]
objective = prefix
z_loss = 0.01
)";
constexpr Index V = 11;

// Weights are larger than initial ones, so that every path matters. Norms differ from 1, and biases
// from 0. Returns them.
reference::Parameters set_weights(Engine& engine) {
  reference::Parameters parameters;
  for (const ParamSpec& spec : engine.store().specs()) {
    const View w = engine.store().get(spec.name).weight;
    const RandomStream random(11, spec.name);
    Numbers values(static_cast<std::size_t>(w.elements()));
    for (Index i = 0; i < w.elements(); ++i)
      values[static_cast<std::size_t>(i)] = w.f32()[i] =
          static_cast<float>((spec.init.kind == InitKind::ones ? 1.0 : 0.0) + 0.3 * random.normal(i));
    parameters[spec.name] = values;
  }
  engine.store().packed_weights().invalidate();
  return parameters;
}

std::vector<std::int32_t> some_ids(Index count, std::uint64_t number) {
  const RandomStream random(number, "ids");
  std::vector<std::int32_t> ids;
  for (Index i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(random.bits(i) % V));
  return ids;
}

class PrefixModel : public testing::TestWithParam<Case> {};

TEST_P(PrefixModel, LossAndGradientsMatchReference) {
  const Config config = parse_config(base, "test", GetParam().settings);
  const Index S = config.model.seq_len, B = 3, T = B * S;
  const auto self = make_comm_self();
  Engine engine(config, V, make_cpu(), make_mesh(*self, {}), true);
  reference::Parameters parameters = set_weights(engine);
  const std::vector<std::int32_t> ids = some_ids(T, 1);
  std::vector<std::int32_t> targets = some_ids(T, 2), ends;
  for (const Index length : {Index{1}, Index{4}, S - 1}) {
    const Index first = std::ssize(ends);
    ends.insert(ends.end(), static_cast<std::size_t>(S), static_cast<std::int32_t>(length));
    std::fill_n(targets.begin() + first, length - 1, -1);
  }
  const Index counted = std::ranges::count_if(targets, [](std::int32_t id) { return id >= 0; });
  engine.forward_backward({.sequences = B,
                           .seq_len = S,
                           .ids = ids,
                           .targets = targets,
                           .step_targets = counted,
                           .step_sequences = B,
                           .prefix_end = ends});
  const Statistics found = engine.take_statistics();
  reference::Model model(config, V, B, {ids.begin(), ids.end()}, {targets.begin(), targets.end()});
  model.set_prefix_ends({ends.begin(), ends.end()});
  const reference::ModelLoss expected = model.loss(parameters, false);
  EXPECT_NEAR(found.loss_sum / static_cast<double>(counted), expected.cross_entropy, 2e-6 * expected.cross_entropy);
  for (const ParamSpec& spec : engine.store().specs()) {
    const View grad = engine.store().get(spec.name).grad;
    const RandomStream random(5, spec.name);
    for (Index trial = 0; trial < 2; ++trial) {
      Numbers direction;
      for (Index i = 0; i < grad.elements(); ++i) direction.push_back(random.normal(trial * grad.elements() + i));
      expect_derivative(
          grad, parameters[spec.name], direction, [&] { return model.loss(parameters, true).total(); }, 1e-4,
          spec.name);
    }
  }
}

// A window of documents with prefixes has the losses of the documents one by one.
TEST_P(PrefixModel, DocumentsSeeTheirOwnPrefix) {
  auto settings = GetParam().settings;
  settings.push_back("--model.seq_len=30");
  const Config config = parse_config(base, "test", settings);
  const auto self = make_comm_self();
  Engine engine(config, V, make_cpu(), make_mesh(*self, {}), false);
  set_weights(engine);
  // Tokens and prefix of each document.
  const std::vector<std::pair<Index, Index>> documents{{9, 4}, {1, 1}, {13, 12}, {7, 1}};
  const std::vector<std::int32_t> ids = some_ids(30, 3);
  std::vector<std::int32_t> targets(30, -1), starts, ends;
  double alone = 0;
  for (const auto& [tokens, prefix] : documents) {
    const auto first = static_cast<std::size_t>(std::ssize(starts)), size = static_cast<std::size_t>(tokens);
    for (Index i = prefix - 1; i + 1 < tokens; ++i)
      targets[first + static_cast<std::size_t>(i)] = ids[first + static_cast<std::size_t>(i) + 1];
    starts.insert(starts.end(), size, static_cast<std::int32_t>(first));
    ends.insert(ends.end(), size, static_cast<std::int32_t>(first) + static_cast<std::int32_t>(prefix));
    const std::vector<std::int32_t> own(size, static_cast<std::int32_t>(prefix));
    engine.evaluate({.sequences = 1,
                     .seq_len = tokens,
                     .ids = std::span(ids).subspan(first, size),
                     .targets = std::span(targets).subspan(first, size),
                     .prefix_end = own},
                    true);
    alone += engine.take_statistics().loss_sum;
  }
  engine.evaluate(
      {.sequences = 1, .seq_len = 30, .ids = ids, .targets = targets, .document_start = starts, .prefix_end = ends},
      true);
  EXPECT_NEAR(engine.take_statistics().loss_sum, alone, 2e-6 * alone);
  // The prefix matters.
  engine.evaluate({.sequences = 1, .seq_len = 30, .ids = ids, .targets = targets, .document_start = starts}, true);
  EXPECT_GT(std::abs(engine.take_statistics().loss_sum - alone), 1e-4 * alone);
}

// ---- generation ----

// Logits are equal up to a constant.
void expect_same_choice(std::span<const float> got, std::span<const float> want, const std::string& where) {
  const auto normed = [](std::span<const float> logits) {
    double sum = 0;
    for (const float z : logits) sum += std::exp(static_cast<double>(z));
    std::vector<double> all;
    for (const float z : logits) all.push_back(static_cast<double>(z) - std::log(sum));
    return all;
  };
  const std::vector<double> a = normed(got), b = normed(want);
  for (std::size_t i = 0; i < b.size(); ++i) EXPECT_NEAR(a[i], b[i], 3e-5) << where << ", token " << i;
}

// The prompt is the prefix. Later tokens read the cache, beside another sequence.
TEST_P(PrefixModel, DecodingEqualsTheWholeForward) {
  auto settings = GetParam().settings;
  if (GetParam().name == std::string("learned_cap_qk_norm")) settings.push_back("--model.seq_len=40");
  const auto self = make_comm_self();
  Engine engine(parse_config(base, "test", settings), V, make_cpu(), make_mesh(*self, {}), false, {}, 1, 40);
  set_weights(engine);
  const std::vector<std::int32_t> ids = some_ids(31, 1), other = some_ids(40, 2);
  constexpr Index prompt = 13, of_other = 3;
  const auto whole = [&](std::span<const std::int32_t> text, Index prefix, Index tokens) {
    const auto logits =
        pair_logits(engine, text.first(static_cast<std::size_t>(prefix)),
                    text.subspan(static_cast<std::size_t>(prefix), static_cast<std::size_t>(tokens - prefix)));
    EXPECT_EQ(std::ssize(logits), tokens * V);
    return logits;
  };
  const std::vector<float> want = whole(ids, prompt, 31), want_other = whole(other, of_other, 25);
  const auto row = [](const std::vector<float>& logits, Index i) {
    return std::span(logits).subspan(static_cast<std::size_t>(i * V), V);
  };
  Cache cache = engine.make_cache(2, 40, 20);
  engine.decode(cache, 0, 1, std::span(other).first(of_other), false);
  expect_same_choice(engine.decode(cache, 1, 1, std::span(ids).first(prompt), true), row(want, prompt - 1), "prompt");
  for (Index i = prompt; i < 31; ++i) {
    const Index at = of_other + i - prompt;
    const auto logits = engine.decode(
        cache, 0, 2, std::vector{other[static_cast<std::size_t>(at)], ids[static_cast<std::size_t>(i)]}, true);
    expect_same_choice(std::span(logits).last(V), row(want, i), fmt::format("position {}", i));
    expect_same_choice(std::span(logits).first(V), row(want_other, at), fmt::format("position {} of the other", at));
  }
  // All ids are the prefix if nothing follows it.
  const auto all = sequence_logits(engine, ids, [](Index, Index) {});
  expect_same_choice(row(all, 30), row(whole(ids, 31, 31), 30), "whole prefix");
}

TEST_P(PrefixModel, GenerationDoesNotDependOnTheBatch) {
  auto settings = GetParam().settings;
  settings.push_back("--model.seq_len=40");
  const auto self = make_comm_self();
  Engine engine(parse_config(base, "test", settings), V, make_cpu(), make_mesh(*self, {}), false);
  set_weights(engine);
  std::vector<std::vector<std::int32_t>> prompts;
  for (const Index length : {1, 9, 3, 17, 6}) prompts.push_back(some_ids(length, static_cast<std::uint64_t>(length)));
  GenerateOptions options{.sampling = {.temperature = 0}, .tokens = 12, .prefill = 4};
  const auto together = generate(engine, prompts, options);
  options.prefill = 100;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto alone = generate(engine, std::span(prompts).subspan(i, 1), options);
    EXPECT_EQ(together[i].added, alone[0].added) << "prompt " << i;
    // Each token is the most likely one after those before it.
    const std::vector<float> logits = pair_logits(engine, prompts[i], alone[0].added);
    for (std::size_t t = 0; t < alone[0].added.size(); ++t) {
      const auto before = std::span(logits).subspan((prompts[i].size() + t - 1) * V, V);
      EXPECT_GT(before[static_cast<std::size_t>(alone[0].added[t])], std::ranges::max(before) - 1e-4f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PrefixModel, testing::ValuesIn(cases),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- settings ----

TEST(VisiblePrefix, SettingsThatHideAPrefixAreErrors) {
  const auto with = [](std::vector<std::string> settings) {
    settings.push_back("--train.objective=prefix");
    return parse_config("", "test", settings);
  };
  EXPECT_TRUE(with({}).has_visible_prefix());
  EXPECT_FALSE(with({"--model.kind=encoder_decoder"}).has_visible_prefix());
  EXPECT_BAD_INPUT(with({"--model.kind=encoder"}), "set it to masked, or model.kind to encoder_decoder");
  EXPECT_BAD_INPUT(with({"--model.mtp_depth=1"}), "would see the tokens that it predicts: set it to 0");
  EXPECT_BAD_INPUT(with({"--model.window=8"}), "model.window = 8 with train.objective = prefix");
  EXPECT_BAD_INPUT(with({"--model.attention=strided"}), "model.attention = strided with train.objective = prefix");
  EXPECT_BAD_INPUT(with({"--model.attention=longformer", "--model.window=8"}), "set it to causal");
  EXPECT_BAD_INPUT(with({"--model.pattern=a,b", "--attention.b.window=4"}), "attention.b.window = 4 with");
  EXPECT_BAD_INPUT(with({"--model.position=t5", "--model.t5_buckets=3"}), "raise it to 4 or more");
}

// A causal token sees (S + 1) / 2 keys on average, and a visible prefix adds (S - 2) / 6.
TEST(VisiblePrefix, CountsInFlops) {
  double of_prefixes = 0;
  constexpr Index S = 9;
  for (Index length = 1; length < S; ++length)
    for (Index i = 0; i < length; ++i) of_prefixes += static_cast<double>(length - 1 - i) / static_cast<double>(S - 1);
  EXPECT_NEAR(mean_prefix_pairs(S), of_prefixes, 1e-12);
  EXPECT_EQ(mean_prefix_pairs(1), 0);
  const auto flops = [](const char* objective) {
    const Config config =
        parse_config("", "test", {std::string("--train.objective=") + objective, "--model.seq_len=9"});
    return core_flops_per_token(block_specs(config).front().attention(), 9);
  };
  EXPECT_NEAR(flops("prefix") / flops("causal"), (5.0 + 7.0 / 6) / 5, 1e-12);
}

}  // namespace
}  // namespace sy
