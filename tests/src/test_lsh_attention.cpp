// Attention by hashing in whole models: equal cases, settings, costs, and generation. The gradients
// are compared in test_model.cpp, and layouts in mpi_layouts.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "src/evaluate/logits.h"
#include "src/generate/generate.h"
#include "src/model/engine.h"
#include "src/model/lsh_attention.h"
#include "src/params/costs.h"

namespace sy {
namespace {

constexpr const char* hashed_model = R"(
[model]
layers = 3
d_model = 12
heads = 4
head_dim = 6
seq_len = 24
d_ff = 20
position = learned
attention = lsh
lsh_chunk_length = 6
lsh_rounds = 2
lsh_buckets = 4
)";
constexpr Index hashed_vocab = 13;

Config hashed_config(const std::vector<std::string>& settings = {}) {
  return parse_config(hashed_model, "test", settings);
}

// A model with weights larger than initial ones, so that every path matters.
struct HashedModel {
  explicit HashedModel(const Config& config, Index positions = 0)
      : self(make_comm_self()),
        engine(config, hashed_vocab, make_cpu(), make_mesh(*self, {}), false, {}, 1, positions) {
    for (const ParamSpec& spec : engine.store().specs()) {
      const View w = engine.store().get(spec.name).weight;
      const RandomStream random(11, spec.name);
      for (Index i = 0; i < w.elements(); ++i)
        w.f32()[i] = static_cast<float>((spec.init.kind == InitKind::ones ? 1.0 : 0.0) + 0.4 * random.normal(i));
    }
    engine.store().packed_weights().invalidate();
  }
  std::vector<float> logits(std::span<const std::int32_t> ids) { return engine.logits({1, std::ssize(ids), ids, {}}); }
  std::unique_ptr<Comm> self;
  Engine engine;
};

std::vector<std::int32_t> hashed_ids(Index count, std::uint64_t seed = 1) {
  std::vector<std::int32_t> ids;
  const RandomStream random(seed, "ids");
  for (Index i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(random.bits(static_cast<std::uint64_t>(i)) % hashed_vocab));
  return ids;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double(a[i]) - double(b[i])));
  return largest;
}

// Chunks of one bucket that see all tokens together are attention to all tokens, in any number of
// rounds. Several buckets hide tokens.
TEST(LshAttention, OneBucketIsFullAttentionOfSharedQueriesAndKeys) {
  const std::vector<std::int32_t> ids = hashed_ids(24);
  for (const std::string kind : {"decoder", "encoder"}) {
    const auto logits = [&](std::vector<std::string> settings) {
      settings.push_back("--model.kind=" + kind);
      return HashedModel(hashed_config(settings)).logits(ids);
    };
    const std::vector<float> full = logits({"--model.lsh_buckets=1", "--model.lsh_chunk_length=24"});
    const std::string before = kind == "decoder" ? "3" : "2", after = kind == "decoder" ? "0" : "1";
    const std::vector<float> chunks =
        logits({"--model.lsh_buckets=1", "--model.lsh_chunks_before=" + before, "--model.lsh_chunks_after=" + after});
    EXPECT_LT(largest_difference(full, chunks), 2e-5) << kind;
    EXPECT_GT(largest_difference(full, logits({})), 1e-2) << kind;
    // One chunk of all tokens needs no hash.
    EXPECT_EQ(full, logits({"--model.lsh_chunk_length=24"})) << kind;
  }
}

TEST(LshAttention, SeedLayerAndRoundKeyTheHash) {
  const std::vector<std::int32_t> ids = hashed_ids(24);
  const std::vector<float> one = HashedModel(hashed_config()).logits(ids);
  EXPECT_EQ(one, HashedModel(hashed_config()).logits(ids));
  EXPECT_GT(largest_difference(one, HashedModel(hashed_config({"--train.seed=2"})).logits(ids)), 1e-3);
  const std::vector<BlockSpec> blocks = block_specs(hashed_config());
  const LshAttentionSpec& spec = *blocks[1].find<LshAttentionSpec>();
  const std::vector<float> all = lsh_rotations(spec, "layers.1.attention.", 0, 4);
  ASSERT_EQ(all.size(), 4u * 6 * 2 * 2);
  EXPECT_NE(all, lsh_rotations(spec, "layers.2.attention.", 0, 4));
  // Ranks of tensor parallelism have the rotations of their heads.
  const std::vector<float> last = lsh_rotations(spec, "layers.1.attention.", 3, 1);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), all.end() - 24, all.end()));
  // Element [head, element, round, column].
  EXPECT_NE(all[0], all[2]);
  EXPECT_NE(all[0], all[24]);
}

// Rotations of the configuration replace the random ones.
TEST(LshAttention, ReadsRotationsOfTheConfiguration) {
  const std::vector<std::int32_t> ids = hashed_ids(24);
  Config config = hashed_config({"--train.seed=2"});
  const std::vector<float> other = HashedModel(config).logits(ids);
  for (Index layer = 0; layer < 3; ++layer) {
    const std::vector<BlockSpec> blocks = block_specs(hashed_config());
    const std::string prefix = blocks[static_cast<std::size_t>(layer)].prefix_of(layer) + "attention.";
    config.lsh_rotations[layer] = lsh_rotations(*blocks[0].find<LshAttentionSpec>(), prefix, 0, 4);
  }
  const std::vector<float> replaced = HashedModel(config).logits(ids);
  EXPECT_EQ(replaced, HashedModel(hashed_config()).logits(ids));
  EXPECT_NE(replaced, other);
}

// Each token of a generated text is the most likely one after the whole text before it, computed in
// one pass of any length.
TEST(LshAttention, GenerationRecomputesTheWholeText) {
  HashedModel model(hashed_config({"--model.pattern=local,lsh", "--attention.local.attention=local",
                                   "--model.local_chunk_length=4", "--model.position=sinusoidal"}),
                    60);
  std::vector<std::vector<std::int32_t>> prompts;
  for (const Index length : {1, 9, 3, 25}) prompts.push_back(hashed_ids(length, static_cast<std::uint64_t>(length)));
  const GenerateOptions options{.sampling = {.temperature = 0}, .tokens = 15, .prefill = 4};
  const auto together = generate(model.engine, prompts, options);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto alone = generate(model.engine, std::span(prompts).subspan(i, 1), options);
    EXPECT_EQ(together[i].added, alone[0].added) << "prompt " << i;
    std::vector<std::int32_t> text = prompts[i];
    for (const std::int32_t id : together[i].added) {
      const std::vector<float> logits = model.logits(text);
      const auto last = logits.end() - hashed_vocab;
      EXPECT_EQ(std::max_element(last, logits.end()) - last, id) << "prompt " << i << ", length " << text.size();
      text.push_back(id);
    }
  }
  const std::vector<std::int32_t> text = hashed_ids(31);
  EXPECT_EQ(sequence_logits(model.engine, text, [](Index, Index) {}), model.logits(text));
}

// Backward of reversible layers sorts tokens as forward did, although rounding changes queries.
TEST(LshAttention, ReversibleLayersReplayTheOrder) {
  const std::vector<std::int32_t> ids = hashed_ids(2 * 24);
  std::map<std::string, std::vector<float>> gradients[2];
  for (const bool repeated : {false, true}) {
    const auto self = make_comm_self();
    Engine engine(hashed_config({"--train.reversible=true", "--model.layers=6"}), hashed_vocab, make_cpu(),
                  make_mesh(*self, {}), true, {}, 2);
    engine.store().initialize(3);
    // Other micro-batches in flight have orders of their own.
    engine.forward({2, 24, ids, ids, 48, 2, 1}, 0);
    if (repeated) {
      const std::vector<std::int32_t> others = hashed_ids(24, 5);
      engine.forward({1, 24, others, others, 48, 2, 1}, 1);
    }
    engine.backward(0);
    for (const ParamSpec& spec : engine.store().specs()) {
      const View grad = engine.store().get(spec.name).grad;
      gradients[repeated][spec.name].assign(grad.f32(), grad.f32() + grad.elements());
    }
    if (repeated) engine.backward(1);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(LshAttention, RejectsWrongSettings) {
  const auto error_of = [](const std::vector<std::string>& settings) -> std::string {
    try {
      hashed_config(settings);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--model.lsh_buckets=10"}, "model.lsh_buckets = 10: the 10 buckets do not divide model.seq_len = 24 evenly"},
      {{"--model.lsh_buckets=4,4"}, "the 16 buckets do not divide model.seq_len = 24"},
      {{"--model.lsh_buckets=3"}, "model.lsh_buckets = 3: 3 is odd"},
      {{"--model.lsh_buckets=4,3"}, "3 is odd"},
      {{"--model.lsh_buckets=2,1"}, "1 is odd"},
      {{"--model.lsh_buckets=2.5"}, "a factor is a whole number"},
      {{"--model.lsh_chunk_length=5"}, "model.lsh_chunk_length = 5 does not divide model.seq_len = 24: set a divisor"},
      {{"--model.lsh_chunk_length=48"}, "model.lsh_chunk_length = 48 does not divide model.seq_len = 24"},
      {{"--model.position=rope"}, "model.position = rope with model.attention = lsh"},
      {{"--model.position=alibi"}, "model.position = alibi with model.attention = lsh"},
      {{"--model.kv_heads=2"}, "model.kv_heads = 2 with model.attention = lsh"},
      {{"--model.window=3"}, "model.window = 3 with model.attention = lsh"},
      {{"--model.attention_sinks=true"}, "model.attention_sinks = true with model.attention = lsh"},
      {{"--model.qk_norm=head"}, "model.qk_norm = head with model.attention = lsh"},
      {{"--model.clip_qkv=3"}, "model.clip_qkv = 3 with model.attention = lsh"},
      {{"--model.attention_softcap=3"}, "model.attention_softcap = 3 with model.attention = lsh"},
      {{"--model.mtp_depth=1"}, "model.mtp_depth = 1 with model.attention = lsh"},
      {{"--data.documents=mask"}, "data.documents = mask with model.attention = lsh"},
      {{"--train.objective=prefix"}, "train.objective = prefix with model.attention = lsh"},
      {{"--train.lora_rank=2"}, "train.lora_rank = 2 with model.attention = lsh"},
      {{"--train.qk_clip=9"}, "train.qk_clip = 9 with model.attention = lsh"},
      {{"--model.kind=encoder_decoder"}, "decoder.attention = lsh with model.kind = encoder_decoder"},
      {{"--model.attention=local", "--model.kind=encoder"}, "model.attention = local with model.kind = encoder"},
      {{"--model.attention=local", "--model.window=3"}, "model.window = 3 with model.attention = local"},
      {{"--model.position=axial"}, "model.axial_shape = : model.position = axial needs"},
      {{"--model.position=axial", "--model.axial_shape=4,5", "--model.axial_widths=6,6"}, "model.axial_shape = 4, 5"},
      {{"--model.position=axial", "--model.axial_shape=4,6", "--model.axial_widths=6,5"}, "model.axial_widths = 6, 5"},
      {{"--model.axial_shape=4,6"}, "model.axial_shape = 4, 6 with model.position = learned"},
      {{"--model.reversible_output=concat"}, "model.reversible_output = concat with train.reversible = false"},
      {{"--model.reversible_output=concat", "--train.reversible=true", "--model.tie_embeddings=true"},
       "model.tie_embeddings = true with model.reversible_output = concat"},
  };
  for (const auto& [settings, text] : wrong) {
    const std::string error = error_of(settings);
    EXPECT_NE(error.find(text), std::string::npos) << text << " is not in: " << error;
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 0) << error;
  }
  EXPECT_EQ(error_of({"--model.position=axial", "--model.axial_shape=5,5", "--model.axial_widths=6,6"}), "");
  EXPECT_EQ(error_of({"--model.lsh_buckets=2,6"}), "");
}

// The power of two up to 2 * seq_len / chunk length, in two factors if it is large.
TEST(LshAttention, ChoosesBuckets) {
  const auto buckets = [](Index tokens, Index chunk) {
    return hashed_config({"--model.lsh_buckets=", "--model.seq_len=" + std::to_string(tokens),
                          "--model.lsh_chunk_length=" + std::to_string(chunk)})
        .model.lsh_buckets;
  };
  EXPECT_EQ(buckets(24, 6), (std::vector<double>{8}));
  EXPECT_EQ(buckets(27, 9), (std::vector<double>{1}));
  EXPECT_EQ(buckets(36, 6), (std::vector<double>{4}));
  EXPECT_EQ(buckets(1024, 4), (std::vector<double>{16, 32}));
  EXPECT_EQ(buckets(65536, 64), (std::vector<double>{32, 64}));
  EXPECT_EQ(buckets(65536, 256), (std::vector<double>{512}));
}

// A model without keys counts its projection of queries once, and the pairs of all rounds.
TEST(LshAttention, CountsInTheCostsOfAModel) {
  const ModelCosts full = model_costs(hashed_config({"--model.attention=causal"}), hashed_vocab),
                   hashed = model_costs(hashed_config(), hashed_vocab);
  const Index of_keys = 4 * 6 * 12;
  EXPECT_EQ(full.parameters.total - hashed.parameters.total, 3 * of_keys);
  EXPECT_EQ(hashed.kv_bytes_per_token, 0);
  const double seen = 2 * 12, hash = 2 * 6 * 2 * 2;
  EXPECT_NEAR(hashed.flops_per_token - full.flops_per_token,
              3 * (4 * (6 * 12 * (seen - 12.5) + hash) - 6 * double(of_keys)), 1e-6);
}

}  // namespace
}  // namespace sy
