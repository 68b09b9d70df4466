// Generation with a cache gives the numbers of generation without it, for any batch. Also the rules
// by which texts continue and end.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "src/generate/generate.h"
#include "src/generate/stop_strings.h"

namespace sy {
namespace {

constexpr Index V = 11;

constexpr const char* base = R"(
[model]
layers = 3
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
first_dense = 1
capacity_factor = 0.5
)";

struct Model {
  explicit Model(const std::vector<std::string>& overrides, Index positions = 80)
      : self(make_comm_self()),
        engine(parse_config(base, "test", overrides), V, make_cpu(), make_mesh(*self, {}), false, {}, 1, positions) {
    // Weights are larger than initial ones, so that every path matters. Norms differ from 1, and
    // biases from 0.
    for (const ParamSpec& spec : engine.store().specs()) {
      const View w = engine.store().get(spec.name).weight;
      const RandomStream random(11, spec.name);
      for (Index i = 0; i < w.elements(); ++i)
        w.f32()[i] = static_cast<float>((spec.init.kind == InitKind::ones ? 1.0 : 0.0) + 0.3 * random.normal(i));
    }
    engine.store().packed_weights().invalidate();
    std::vector<float> averages = engine.batch_norm_averages();
    const RandomStream random(13, "averages");
    const Index d = engine.config().model.d_model;
    for (Index i = 0; i < std::ssize(averages); ++i) {
      const bool is_variance = i / d % 2 == 1;
      averages[static_cast<std::size_t>(i)] = static_cast<float>((is_variance ? 4 : 0) + 0.5 * random.normal(i));
    }
    engine.set_batch_norm_averages(averages);
  }
  // Logarithm of the probability of each token after `ids`, computed without a cache.
  std::vector<double> recomputed(std::span<const std::int32_t> ids) {
    std::vector<double> found;
    for (std::int32_t id = 0; id < V; ++id) {
      std::vector<std::int32_t> targets(ids.size(), -1);
      targets.back() = id;
      engine.evaluate({1, static_cast<Index>(ids.size()), ids, targets}, true);
      found.push_back(-engine.take_statistics().loss_sum);
    }
    return found;
  }
  std::unique_ptr<Comm> self;
  Engine engine;
};

std::vector<std::int32_t> some_ids(Index count, std::uint64_t number) {
  const RandomStream random(number, "ids");
  std::vector<std::int32_t> ids;
  for (Index i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(random.bits(i) % V));
  return ids;
}

void expect_log_probabilities(std::span<const float> logits, const std::vector<double>& want,
                              const std::string& where) {
  double sum = 0;
  for (const float z : logits) sum += std::exp(static_cast<double>(z));
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(static_cast<double>(logits[i]) - std::log(sum), want[i], 3e-5) << where << ", token " << i;
}

struct Case {
  const char* name;
  std::vector<std::string> overrides;
};
const Case decoding_cases[] = {
    {"mixtral", {}},
    {"dense", {"--moe.experts=0"}},
    {"window", {"--model.window=4"}},
    {"window_of_one", {"--model.window=1"}},
    {"pattern",
     {"--model.pattern=local*2,global", "--attention.local.window=5", "--attention.local.rope_theta=100",
      "--attention.global.position=none"}},
    {"two_windows",
     {"--model.pattern=near,far,global", "--attention.near.window=2", "--attention.far.window=9",
      "--attention.far.qk_norm=true"}},
    {"norms_and_caps",
     {"--model.qk_norm=true", "--model.attention_softcap=1.5", "--model.output_softcap=2", "--model.window=3"}},
    {"shared_sigmoid_bias",
     {"--moe.shared_experts=1", "--moe.score=sigmoid", "--moe.bias_update_rate=0.01", "--moe.aux_scope=global_batch"}},
    {"head_layernorm_offset_output_bias_drawn_in_training",
     {"--model.qk_norm=head_layernorm", "--model.norm_offset=true", "--model.output_bias=true",
      "--model.attention_scale=0.5", "--moe.ffn=gelu", "--moe.jitter=0.1", "--moe.choice=noisy", "--moe.noise=1",
      "--moe.learned_noise=true"}},
    {"one_kv_head", {"--model.kv_heads=1", "--model.head_dim=10", "--model.rope_fraction=0.5"}},
    {"all_heads", {"--model.kv_heads=4", "--model.head_dim=18"}},
    {"learned", {"--model.position=learned", "--model.seq_len=60"}},
    {"sinusoidal", {"--model.position=sinusoidal"}},
    {"alibi", {"--model.position=alibi"}},
    {"alibi_with_a_window", {"--model.position=alibi", "--model.window=4", "--model.kv_heads=1"}},
    {"t5", {"--model.position=t5", "--model.t5_buckets=8", "--model.t5_max_distance=20"}},
    {"t5_of_each_layer_with_a_window",
     {"--model.position=t5", "--model.t5_shared=false", "--model.t5_buckets=5", "--model.t5_max_distance=6",
      "--model.window=6"}},
    {"sinks", {"--model.attention_sinks=true"}},
    {"sinks_with_a_window_and_a_cap",
     {"--model.attention_sinks=true", "--model.window=3", "--model.attention_softcap=1.5"}},
    {"strided", {"--model.attention=strided", "--model.attention_stride=4"}},
    {"fixed", {"--model.attention=fixed", "--model.attention_stride=5", "--model.attention_summary=2"}},
    {"longformer", {"--model.attention=longformer", "--model.window=4", "--model.global_tokens=2"}},
    {"windows_scores_and_patterns",
     {"--model.layers=5", "--model.pattern=a,b,c,d,e", "--model.t5_buckets=6", "--model.t5_max_distance=12",
      "--attention.a.position=t5", "--attention.a.window=5", "--attention.a.attention_sinks=true",
      "--attention.b.position=alibi", "--attention.b.attention=strided", "--attention.b.attention_stride=3",
      "--attention.c.position=t5", "--attention.c.attention=fixed", "--attention.c.attention_stride=6",
      "--attention.c.attention_summary=1", "--attention.d.attention=longformer", "--attention.d.window=3",
      "--attention.d.attention_sinks=true", "--attention.e.window=4", "--attention.e.qk_norm=whole"}},
    {"latent",
     {"--model.kv_heads=0", "--model.kv_lora_rank=5", "--model.q_lora_rank=7", "--model.qk_rope_head_dim=4",
      "--model.v_head_dim=3", "--model.rope_pairs=interleaved"}},
    {"latent_with_windows_biases_and_sinks",
     {"--model.kv_heads=0", "--model.kv_lora_rank=20", "--model.qk_rope_head_dim=2", "--model.pattern=a,b,c",
      "--attention.a.window=4", "--attention.a.attention_sinks=true", "--attention.b.position=alibi",
      "--attention.c.position=none", "--attention.c.attention_softcap=1.5"}},
    {"indexed",
     {"--model.attention=indexed", "--model.index_n_heads=3", "--model.index_head_dim=8", "--model.index_topk=4"}},
    {"indexed_beside_a_window",
     {"--model.pattern=a,b,c", "--attention.a.attention=indexed", "--model.index_n_heads=4",
      "--model.index_head_dim=10", "--model.index_topk=6", "--attention.b.window=5", "--attention.c.attention=indexed",
      "--attention.c.index_topk=2", "--attention.c.attention_sinks=true"}},
    {"indexed_latent",
     {"--model.attention=indexed", "--model.index_n_heads=3", "--model.index_head_dim=8", "--model.index_topk=5",
      "--model.kv_heads=0", "--model.kv_lora_rank=5", "--model.q_lora_rank=7", "--model.qk_rope_head_dim=4",
      "--model.v_head_dim=3", "--model.rope_pairs=interleaved"}},
    {"indexed_warmup",
     {"--model.attention=indexed", "--model.index_n_heads=3", "--model.index_head_dim=8", "--model.index_topk=4",
      "--train.indexer=warmup"}},
    {"reversible", {"--train.reversible=true"}},
    {"batchnorm", {"--model.norm=batchnorm", "--model.embedding_norm=true", "--model.norm_position=both"}},
    {"layernorm_tied", {"--model.norm=layernorm", "--model.bias=true", "--model.tie_embeddings=true"}},
};

class CachedDecoding : public testing::TestWithParam<Case> {};

// A prompt in chunks, then token by token, in the second slot beside another sequence.
TEST_P(CachedDecoding, EqualsRecomputation) {
  Model model(GetParam().overrides);
  Engine& engine = model.engine;
  const std::vector<std::int32_t> ids = some_ids(31, 1), other = some_ids(40, 2);
  constexpr Index at_once = 5, prompt = 13;
  Cache cache = engine.make_cache(2, 60, at_once);
  engine.decode(cache, 0, 1, std::span(other).first(3), false);
  for (Index begin = 0; begin < prompt; begin += at_once) {
    const Index count = std::min(at_once, prompt - begin);
    const auto logits = engine.decode(cache, 1, 1, std::span(ids).subspan(begin, count), true);
    expect_log_probabilities(logits, model.recomputed(std::span(ids).first(begin + count)), "prompt");
  }
  for (Index i = prompt; i < 31; ++i) {
    const Index of_other = 3 + i - prompt;
    const auto logits = engine.decode(cache, 0, 2, std::vector{other[of_other], ids[i]}, true);
    ASSERT_EQ(std::ssize(logits), 2 * V);
    const std::string where = "position " + std::to_string(i);
    if (i % 3 == 0)
      expect_log_probabilities(std::span(logits).last(V), model.recomputed(std::span(ids).first(i + 1)), where);
    if (i % 6 == 0)
      expect_log_probabilities(std::span(logits).first(V), model.recomputed(std::span(other).first(of_other + 1)),
                               where + " of the other");
  }
  // The first sequence ends, and the second moves to its slot.
  cache.remove(0, 1);
  EXPECT_EQ(cache.length(0), 31);
  EXPECT_EQ(cache.length(1), 0);
  std::vector<std::int32_t> more = ids;
  more.push_back(4);
  expect_log_probabilities(engine.decode(cache, 0, 1, std::vector{4}, true), model.recomputed(more), "moved");
}

TEST_P(CachedDecoding, BatchEqualsSinglePrompts) {
  Model model(GetParam().overrides);
  std::vector<std::vector<std::int32_t>> prompts;
  for (const Index length : {1, 9, 3, 17, 6}) prompts.push_back(some_ids(length, static_cast<std::uint64_t>(length)));
  GenerateOptions options{.sampling = {.temperature = 0}, .tokens = 20, .prefill = 4};
  const auto together = generate(model.engine, prompts, options);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto alone = generate(model.engine, std::span(prompts).subspan(i, 1), options);
    EXPECT_EQ(together[i].added, alone[0].added) << "prompt " << i;
    EXPECT_EQ(std::ssize(alone[0].added), options.tokens);
  }
  // Recomputation without a cache agrees: each token is the most likely one after those before it.
  std::vector<std::int32_t> ids = prompts[3];
  for (const std::int32_t id : std::span(together[3].added).first(8)) {
    const auto p = model.recomputed(ids);
    EXPECT_GT(p[id], *std::max_element(p.begin(), p.end()) - 1e-4);
    ids.push_back(id);
  }
}

INSTANTIATE_TEST_SUITE_P(Configs, CachedDecoding, testing::ValuesIn(decoding_cases),
                         [](const testing::TestParamInfo<Case>& c) { return std::string(c.param.name); });

TEST(Cache, WindowBoundsItsSize) {
  constexpr Index most = 100000;
  Model all({}, most), window({"--model.window=6"}, most),
      pattern({"--model.pattern=local*2,global", "--attention.local.window=6"}, most);
  const auto bytes = [](Model& m, Index positions) { return m.engine.make_cache(3, positions, 4).bytes(); };
  const Index token = 2 * 3 * 2 * 6 * 4;  // keys and values of 3 slots, 2 kv heads of 6 floats
  EXPECT_EQ(bytes(all, 100), 3 * 100 * token);
  EXPECT_EQ(bytes(window, 100), 3 * (6 - 1 + 4) * token);
  EXPECT_EQ(bytes(window, most), bytes(window, 100));
  EXPECT_EQ(bytes(window, 5), 3 * 5 * token);
  EXPECT_EQ(bytes(pattern, 100), (2 * 9 + 100) * token);
  // A latent is stored once for all heads, with the rotated elements of keys that they share.
  Model latent({"--model.kv_heads=0", "--model.kv_lora_rank=5", "--model.qk_rope_head_dim=4"}, most);
  EXPECT_EQ(bytes(latent, 100), 3 * 100 * 3 * (5 + 4) * 4);
  // Global tokens are visible from beyond the window.
  Model longformer({"--model.window=6", "--model.attention=longformer"}, most);
  EXPECT_EQ(bytes(longformer, 100), bytes(all, 100));
}

TEST(Generate, SamplesByPromptAndPositionOnly) {
  Model model({});
  std::vector<std::vector<std::int32_t>> prompts;
  for (Index i = 0; i < 5; ++i) prompts.push_back(some_ids(4, 7));  // the same prompt five times
  GenerateOptions options{.sampling = {.temperature = 1.2, .top_p = 0.95}, .tokens = 12};
  const auto all = generate(model.engine, prompts, options);
  EXPECT_NE(all[0].added, all[1].added);
  for (const auto& [batch, prefill] : {std::pair<Index, Index>{1, 1}, {2, 3}, {16, 4}}) {
    options.batch = batch;
    options.prefill = prefill;
    const auto again = generate(model.engine, prompts, options);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(again[i].added, all[i].added) << batch << " at a time";
  }
  options.seed = 2;
  EXPECT_NE(generate(model.engine, prompts, options)[0].added, all[0].added);
}

TEST(Generate, StopsAtEndOfTextAndStopFunction) {
  Model model({});
  const std::vector<std::vector<std::int32_t>> prompts = {some_ids(4, 1), some_ids(2, 2), some_ids(6, 3)};
  GenerateOptions options{.sampling = {.temperature = 1.5}, .tokens = 30, .batch = 2};
  const auto all = generate(model.engine, prompts, options);
  for (const Continuation& c : all) EXPECT_EQ(c.finish, Finish::length);

  options.end_of_text = all[1].added[5];
  options.stops = [&](std::size_t prompt, std::span<const std::int32_t> added) {
    return prompt == 0 && added.size() == 7;
  };
  std::map<std::size_t, std::size_t> reported;  // number of tokens of each prompt
  const auto ended = generate(model.engine, prompts, options, [&](std::size_t i, std::span<const std::int32_t> added) {
    EXPECT_EQ(added.size(), ++reported[i]);
  });
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto& whole = all[i].added;
    const std::size_t end = std::find(whole.begin(), whole.end(), options.end_of_text) - whole.begin();
    const std::size_t most = i == 0 ? std::min<std::size_t>(end, 7) : end;
    EXPECT_EQ(ended[i].added, std::vector(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(most))) << i;
    EXPECT_EQ(reported[i], most) << i;
    EXPECT_EQ(ended[i].finish, most < end           ? Finish::stop
                               : end < whole.size() ? Finish::end_of_text
                                                    : Finish::length)
        << i;
  }
  EXPECT_EQ(ended[1].finish, Finish::end_of_text);
  options.tokens = 0;
  EXPECT_TRUE(generate(model.engine, prompts, options)[0].added.empty());
}

// ---- the sampler ----

std::map<std::int32_t, double> shares(const std::vector<float>& logits, const SampleOptions& options,
                                      const std::vector<std::int32_t>& seen = {}) {
  std::map<std::int32_t, double> count;
  for (int i = 0; i < 1000; ++i) count[sample_token(logits, options, (i + 0.5) / 1000, seen)] += 1e-3;
  return count;
}

TEST(Sample, MinPKeepsIdsRelativeToTheLikeliest) {
  const std::vector<float> logits = {std::log(0.15f), std::log(0.5f), std::log(0.05f), std::log(0.3f)};
  EXPECT_EQ(shares(logits, {.temperature = 1, .min_p = 0.05}).size(), 4u);
  EXPECT_EQ(shares(logits, {.temperature = 1, .min_p = 0.2}).size(), 3u);
  auto two = shares(logits, {.temperature = 1, .min_p = 0.5});
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two[1], 0.625, 0.002);
  EXPECT_NEAR(two[3], 0.375, 0.002);
  EXPECT_EQ(shares(logits, {.temperature = 1, .min_p = 1}).size(), 1u);
  // min_p applies to the probabilities at the temperature: at 2 their ratios are 0.39, 0.71, 0.22,
  // 0.55.
  EXPECT_EQ(shares(logits, {.temperature = 2, .min_p = 0.5}).size(), 3u);
  EXPECT_EQ(shares(logits, {.temperature = 1, .top_k = 3, .top_p = 0.6, .min_p = 0.2}).size(), 2u);
}

TEST(Sample, TopPAppliesAfterTopK) {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.2f), std::log(0.2f), std::log(0.2f)};
  EXPECT_EQ(shares(logits, {.temperature = 1, .top_k = 2, .top_p = 0.66}).size(), 1u);  // 0.4 / 0.6
  EXPECT_EQ(shares(logits, {.temperature = 1, .top_k = 2, .top_p = 0.68}).size(), 2u);
  EXPECT_EQ(shares(logits, {.temperature = 1, .top_k = 2}).count(1), 1u);  // ties: the lower id
}

// A model that diverged has such logits. No probabilities follow from them.
TEST(Sample, RefusesLogitsWithoutProbabilities) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const double temperature : {0.0, 1.0}) {
    const SampleOptions options{.temperature = temperature};
    for (const std::vector<float>& logits :
         {std::vector{1.0f, inf, 2.0f}, {std::nanf(""), std::nanf("")}, {-inf, -inf, -inf}})
      EXPECT_THROW(sample_token(logits, options, 0.5), Failure);
    EXPECT_EQ(sample_token(std::vector{-inf, 1.0f, -inf}, options, 0.5), 1);
  }
}

TEST(Sample, RepetitionPenaltyLowersSeenIds) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.5f, -1.0f};
  const SampleOptions greedy{.repetition_penalty = 1.3, .temperature = 0};
  EXPECT_EQ(sample_token(logits, greedy, 0, {}), 1);
  const std::vector<std::int32_t> once = {1}, twice = {1, 1}, both = {2, 1};
  EXPECT_EQ(sample_token(logits, greedy, 0, once), 2);  // 3 / 1.3 is less than 2.5
  EXPECT_EQ(sample_token(logits, greedy, 0, both), 1);
  const SampleOptions warm{.repetition_penalty = 2, .temperature = 1};
  auto p = shares(logits, warm, {3, 1, 3});
  const double all = std::exp(1.0) + std::exp(1.5) + std::exp(2.5) + std::exp(-2.0);
  EXPECT_NEAR(p[1], std::exp(1.5) / all, 0.002);
  EXPECT_NEAR(p[3], std::exp(-2.0) / all, 0.002);
  EXPECT_EQ(shares(logits, warm, twice), shares(logits, warm, once));
}

// ---- stop strings ----

TEST(StopStrings, AreFoundAtTheFirstPosition) {
  EXPECT_EQ(find_stop("one two three", {"three", "two"}), 4u);
  EXPECT_EQ(find_stop("one two", {"twos"}), std::string::npos);
  EXPECT_EQ(find_stop("one two", {}), std::string::npos);
}

TEST(StopStrings, HoldBackAPossibleBeginning) {
  EXPECT_EQ(before_partial_stop("a text\n", {"\n\n"}), 6u);
  EXPECT_EQ(before_partial_stop("a text", {"\n\n"}), 6u);
  EXPECT_EQ(before_partial_stop("abab", {"ababc", "bx"}), 0u);
  EXPECT_EQ(before_partial_stop("ac", {"b"}), 2u);  // a stop of one byte is complete or absent
  EXPECT_EQ(before_partial_stop("", {"stop"}), 0u);
  // However a text is split, the text before the stop string is shown.
  const std::string text = "eeendless enough, the ending";
  const std::vector<std::string> stops = {"ending", "enough,t"};
  std::string shown;
  for (std::size_t n = 0; n <= text.size(); ++n) {
    const std::string_view so_far = std::string_view(text).substr(0, n);
    const std::size_t stop = find_stop(so_far, stops);
    const auto visible = so_far.substr(0, stop != so_far.npos ? stop : before_partial_stop(so_far, stops));
    ASSERT_TRUE(visible.starts_with(shown)) << n;  // shown text is never withdrawn
    shown = visible;
  }
  EXPECT_EQ(shown, "eeendless enough, the ");
}

}  // namespace
}  // namespace sy
