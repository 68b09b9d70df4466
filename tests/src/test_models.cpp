// The known models in configs/models have their published sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "dist/comm.h"
#include "src/model/engine.h"
#include "src/params/attention_spec.h"
#include "src/params/costs.h"
#include "src/train/distributed_optimizer.h"

namespace sy {
namespace {

struct Published {
  double parameters;  // in 1e9
  // In 1e9. 0: all parameters, or not published.
  double active = 0;
};

// Published sizes. The first lines of each file name the source.
//
// A number excludes the components that the file leaves out. For Gopher and Chinchilla these are
// the layers * d_model^2 parameters of Transformer-XL's positions. Decoders of encoder-decoder
// models have no published number. It is computed by hand: layers * (attention + FFN) + embeddings.
const std::map<std::string, Published> published = {
    {"transformer-2017", {6 * (4 * 512e-9 * 512 + 2 * 512e-9 * 2048) + 37e-6 * 512}},
    {"gpt-1", {0.11653}},
    {"t5-11b-decoder", {24 * (4 * 1024e-9 * 16384 + 2 * 1024e-9 * 65536) + 32.128e-6 * 1024}},
    {"t5-v1.1-xxl-decoder", {24 * (4 * 4096e-9 * 4096 + 3 * 4096e-9 * 10240) + 2 * 32.128e-6 * 4096}},
    {"gpt-2-xl", {1.5576}},
    {"gpt-3-175b", {174.6}},
    {"gpt-j-6b", {6.0533}},
    {"lamda-137b", {137}},
    {"gopher-280b", {280 - 80 * 16384e-9 * 16384}},
    {"gpt-neox-20b", {20.5546}},
    {"bloom-176b", {176.247}},
    {"opt-175b", {175}},
    {"palm-540b", {540.35}},
    {"chinchilla-70b", {70 - 80 * 8192e-9 * 8192}},
    {"mpt-7b", {6.6589}},
    {"mistral-7b", {7.2417}},
    {"llama-65b", {65.2}},
    {"llama-2-70b", {68.9766}},
    {"olmo-7b", {6.888}},
    {"olmo-2-7b", {7.2986}},
    {"gemma-2-27b", {27.2271}},
    {"nemotron-4-340b", {9.4 + 331.6}},
    {"qwen-14b", {14.1673}},
    {"qwen-2.5-72b", {72.7062}},
    {"falcon-2-11b", {11.1034}},
    {"phi-3-small", {7.3923}},
    {"phi-4", {14.6595}},
    {"llama-3.1-8b", {8.0303}},
    {"llama-3.1-70b", {70.5537}},
    {"llama-3.1-405b", {405.85}},
    {"reka-flash-3", {20.9}},
    {"yi-34b", {34.3889}},
    {"deepseek-67b", {67.4247}},
    {"deepseek-v2", {235.7414, 21 + 102.4e-6 * 5120}},     // active: without its embedding
    {"deepseek-v2-lite", {15.7065}},                       // active: only 2.4 is published
    {"deepseek-v3", {671.0264, 36.7 + 129.28e-6 * 7168}},  // the same
    {"deepseek-v3.2", {671.8779, 36.7 + 61 * 0.013959424 + 129.28e-6 * 7168}},
    {"command-r-plus", {103.8107}},
    {"reformer-enwik8", {0.1491827}},
    {"mixtral-8x7b", {46.7028, 12.88}},
    {"mixtral-8x22b", {140.6301, 39.15}},
    {"command-a", {111.0576}},
    {"gemma-3-27b", {27.009}},
    {"apertus-8b", {8.05}},
    {"apertus-70b", {70.6}},
    {"granite-3.1-8b", {8.1705}},
    {"granite-3.1-3b-a800m", {3.2987}},  // active: only 0.8 is published
    {"hunyuan-a13b", {80.3932}},         // active: only 13 is published
    {"smollm2-1.7b", {1.7114}},
    {"transformer-base", {18 * 4 * 512e-9 * 512 + 12 * 2 * 512e-9 * 2048 + 37e-6 * 512}},
    {"transformer-big", {18 * 4 * 1024e-9 * 1024 + 12 * 2 * 1024e-9 * 4096 + 37e-6 * 1024}},
    // transformers counts them in this way, but for the matrix of logits that T5 v1.1 and mT5 do
    // not share with the embedding.
    {"t5-small", {0.060506624}},
    {"t5-base", {0.222903552}},
    {"t5-large", {0.737668096}},
    {"t5-3b", {2.851598336}},
    {"t5-11b", {11.307321344}},
    {"t5-v1.1-small", {0.076961152}},
    {"t5-v1.1-base", {0.247577856}},
    {"t5-v1.1-large", {0.783150080}},
    {"t5-v1.1-xl", {2.849757184}},
    {"t5-v1.1-xxl", {11.135332352}},
    {"mt5-small", {0.300176768}},
    {"mt5-base", {0.582401280}},
    {"mt5-large", {1.229581312}},
    {"mt5-xl", {3.742619648}},
    {"mt5-xxl", {12.921057280}},
    {"switch-base-8", {0.61934, 0.22290}},
    {"switch-base-16", {1.07233, 0.22290}},
    {"switch-base-32", {1.97830, 0.22290}},
    {"switch-base-64", {3.79024, 0.22290}},
    {"switch-base-128", {7.41414, 0.22290}},
    {"switch-base-8-decoder",
     {12 * 4 * 768e-9 * 768 + 6 * 2 * 768e-9 * 3072 + 6 * 8 * 2 * 768e-9 * 3072 + 32.128e-6 * 768}},
    {"glam-64b-64e", {1162, 96.6}},
    {"qwen2-57b-a14b", {57.4092, 14.2}},
    {"qwen3-235b-a22b", {235.0936, 22.2}},
    {"qwen3-30b-a3b", {30.5321}},  // active: only 3.3 is published
    {"olmoe-7b-1b", {6.9192, 1.282}},
    // The model card leaves the embedding out of the active parameters.
    {"bert-base", {0.109514298}},  // as transformers counts them
    {"led-base", {0.16184448}},
    {"roberta-base", {0.124697433 - 2 * 768e-9}},
    {"modernbert-base", {0.149655232}},
    {"gpt-oss-120b", {116.83, 5.13 + 201.088e-6 * 2880}},
    {"gpt-oss-20b", {20.91, 3.61 + 201.088e-6 * 2880}},
    {"gemma-7b", {8.5377}},
    {"smollm3-3b", {3.0751}},
    {"stablelm-3b", {2.7954}},
    {"phi-2", {2.7797}},
    {"seed-oss-36b", {36.151}},
    {"exaone-4-32b", {30.95 + 2 * 102.4e-6 * 5120}},
    {"glm-4.5", {355}},     // active: only 32 is published
    {"minimax-m2", {230}},  // active: only 10 is published
    {"kimi-k2", {1026}},    // active: only 32 is published
};

TEST(KnownModels, HaveThePublishedParameterCounts) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MODELS)) {
    const std::string name = entry.path().stem();
    SCOPED_TRACE(name);
    ++files;
    const Config config = read_config(entry.path(), {});
    const ParamCount count = count_params(config, model_vocab(config, 0));
    ASSERT_TRUE(published.count(name));
    const auto [parameters, active] = published.at(name);
    EXPECT_NEAR(static_cast<double>(count.total) / 1e9 / parameters, 1, 0.01) << count.total;
    if (active > 0) {
      EXPECT_NEAR(static_cast<double>(count.active) / 1e9 / active, 1, 0.01) << count.active;
    }
  }
  EXPECT_EQ(files, published.size());
}

// transformers counts the parameters of encoders exactly. It stores two more positions of RoBERTa.
TEST(KnownModels, HaveTheCountsOfTransformers) {
  const auto count = [](const char* name) {
    const Config config = read_config(std::filesystem::path(MODELS) / (std::string(name) + ".ini"), {});
    return count_params(config, model_vocab(config, 0)).total;
  };
  EXPECT_EQ(count("deepseek-v3.2") - count("deepseek-v3"), 61 * 13959424);
  EXPECT_EQ(count("bert-base"), 109514298);
  EXPECT_EQ(count("roberta-base"), 124697433 - 2 * 768);
  EXPECT_EQ(count("modernbert-base"), 149655232);
  EXPECT_EQ(count("reformer-enwik8"), 149182722);
  EXPECT_EQ(count("t5-small"), 60506624);
  EXPECT_EQ(count("t5-base"), 222903552);
  EXPECT_EQ(count("t5-large"), 737668096);
  EXPECT_EQ(count("t5-3b"), 2851598336);
  EXPECT_EQ(count("t5-11b"), 11307321344);
  // transformers does not count the matrix of logits of these.
  EXPECT_EQ(count("t5-v1.1-small"), 60511616 + Index{32128} * 512);
  EXPECT_EQ(count("t5-v1.1-base"), 222903552 + Index{32128} * 768);
  EXPECT_EQ(count("t5-v1.1-large"), 750251008 + Index{32128} * 1024);
  EXPECT_EQ(count("t5-v1.1-xl"), 2783959040 + Index{32128} * 2048);
  EXPECT_EQ(count("t5-v1.1-xxl"), 11003736064 + Index{32128} * 4096);
  EXPECT_EQ(count("mt5-small"), 172119424 + Index{250112} * 512);
  EXPECT_EQ(count("mt5-base"), 390315264 + Index{250112} * 768);
  EXPECT_EQ(count("mt5-large"), 973466624 + Index{250112} * 1024);
  EXPECT_EQ(count("mt5-xl"), 3230390272 + Index{250112} * 2048);
  EXPECT_EQ(count("mt5-xxl"), 11896598528 + Index{250112} * 4096);
  // transformers does not count the bias of the logits.
  EXPECT_EQ(count("led-base"), 161844480 + 50265);
}

// The model of the file with small sizes: two layers of each kind, and smaller widths, windows and
// numbers of experts if the file has them.
Config small_version(const std::filesystem::path& file) {
  const Config whole = read_config(file, {});
  const Config::Model& m = whole.model;
  const Index heads = 4, kv = m.kv_heads == 1 ? 1 : m.kv_heads < m.heads ? 2 : 4;
  Index kinds = 0;
  for (const Pattern::Segment& segment : m.pattern.segments) kinds += segment.layers;
  std::vector<std::string> small = {"--model.d_model=32",
                                    "--model.heads=" + std::to_string(heads),
                                    "--model.kv_heads=" + std::to_string(kv),
                                    "--model.head_dim=8",
                                    "--model.d_ff=48",
                                    "--model.vocab=0",
                                    "--model.seq_len=16",
                                    "--model.layers=" + std::to_string(std::max<Index>(2, kinds))};
  if (m.position == Position::axial)
    small.insert(small.end(), {"--model.axial_shape=4,4", "--model.axial_widths=12,20", "--model.lsh_buckets=4",
                               "--model.lsh_chunk_length=4", "--model.local_chunk_length=4"});
  if (m.kv_lora_rank > 0)
    small.insert(small.end(),
                 {"--model.kv_lora_rank=12", "--model.q_lora_rank=" + std::to_string(m.q_lora_rank > 0 ? 10 : 0),
                  "--model.qk_rope_head_dim=4", "--model.v_head_dim=6"});
  const auto windowed = [&](const std::string& prefix, const Config::Model& model) {
    if (model.window > 0) small.push_back("--" + prefix + ".window=5");
    if (model.rope_original_length > 0) small.push_back("--" + prefix + ".rope_original_length=8");
  };
  windowed("model", m);
  const auto root = [](Index width) { return 1 / std::sqrt(static_cast<double>(width)); };
  if (std::abs(m.logit_scale - root(m.d_model)) < 1e-6)
    small.push_back(fmt::format("--model.logit_scale={}", root(32)));
  // Granite's factor of the logits is for its width.
  if (m.embedding_scale != 1) small.push_back("--model.logit_scale=1");
  for (const Config::Kind& kind : whole.kinds) windowed("attention." + kind.name, kind.model);
  for (const Config::Kind& stack : whole.stacks) {
    windowed(stack.name, stack.model);
    const std::string length = stack.name + ".seq_len";
    if (whole.train.objective == Objective::seq2seq && std::ranges::count(stack.own_keys, length) > 0)
      small.push_back("--" + length + "=16");
  }
  if (whole.moe.experts > 0)
    small.insert(small.end(), {"--moe.experts=8", "--moe.d_ff=16",
                               "--moe.first_dense=" + std::to_string(std::min<Index>(1, whole.moe.first_dense)),
                               "--moe.top_k=" + std::to_string(std::min<Index>(2, whole.moe.top_k)),
                               "--moe.shared_experts=" + std::to_string(std::min<Index>(1, whole.moe.shared_experts))});
  small.insert(small.end(), {"--train.lr=0.01", "--train.warmup=0", "--train.schedule=constant", "--run.dtype=f32"});
  return read_config(file, small);
}

// Trains on one batch repeatedly. If its components fit together, the model learns it.
TEST(KnownModels, LearnAsSmallModels) {
  for (const auto& entry : std::filesystem::directory_iterator(MODELS)) {
    SCOPED_TRACE(entry.path().stem());
    const Config config = small_version(entry.path());
    const Index V = 23, B = 4, S = config.decoder_length();
    const auto self = make_comm_self();
    Engine engine(config, V, make_cpu(), make_mesh(*self, {}), true);
    engine.store().initialize(1);
    DistributedOptimizer optimizer(engine.mesh(), engine.store());
    std::vector<std::int32_t> ids, targets;
    const RandomStream draw(3, "tokens");
    for (Index i = 0; i < B * S; ++i) ids.push_back(static_cast<std::int32_t>(draw.bits(i) % V));
    targets.assign(ids.begin() + 1, ids.end());
    targets.push_back(0);
    std::vector<std::int32_t> encoder_ids;
    for (Index i = 0; i < B * config.encoder_length(); ++i)
      encoder_ids.push_back(static_cast<std::int32_t>(draw.bits(1000 + i) % V));
    double first = 0, last = 0;
    for (Index step = 1; step <= 20; ++step) {
      engine.forward_backward({B, S, ids, targets, B * S, B, 1, 0, {}, config.encoder_length(), encoder_ids});
      optimizer.step(config.train, config.train.lr, step);
      last = engine.take_statistics().loss_sum / static_cast<double>(B * S);
      if (step == 1) first = last;
      ASSERT_TRUE(std::isfinite(last));
    }
    EXPECT_LT(last, 0.8 * first) << first << " becomes " << last;
  }
}

TEST(ModelCosts, CountVisibleKeys) {
  for (Index tokens : {1, 2, 7, 20})
    for (Index window : {0, 1, 3, 7, 50}) {
      double sum = 0;
      for (Index i = 0; i < tokens; ++i) sum += static_cast<double>(window > 0 ? std::min(window, i + 1) : i + 1);
      EXPECT_DOUBLE_EQ(mean_visible_keys(tokens, {.window = window}), sum / static_cast<double>(tokens))
          << tokens << ", " << window;
    }
  EXPECT_EQ(mean_visible_keys(0, {}), 0);
  EXPECT_EQ(mean_visible_keys(7, {.causal = false}), 7);
}

TEST(ModelCosts, CountVisibleKeysOfSparsePatterns) {
  for (const SparsePattern& s :
       {SparsePattern::strided(1), SparsePattern::strided(4), SparsePattern::fixed(5, 2), SparsePattern::fixed(4, 0),
        SparsePattern::fixed(3, 3), SparsePattern::chunks(3, 1), SparsePattern::chunks(4, 2),
        SparsePattern::longformer(3, 2), SparsePattern::longformer(6, 0)})
    for (Index tokens : {1, 2, 6, 23}) {
      double sum = 0;
      for (Index p = 0; p < tokens; ++p)
        for (Index j = 0; j <= p; ++j)
          sum += p - j < s.local || (s.stride > 0 && (p - j) % s.stride == 0) || j < s.global ||
                 (s.block > 0 && (p / s.block - j / s.block <= s.before || j % s.block >= s.block - s.summary));
      EXPECT_DOUBLE_EQ(mean_visible_keys(tokens, {.sparse = s}), sum / static_cast<double>(tokens))
          << tokens << ", " << s.local << " " << s.block << " " << s.summary << " " << s.stride << " " << s.global;
    }
}

// Windows on both sides, and first tokens that see all others.
TEST(ModelCosts, CountVisibleKeysOfEncoders) {
  for (const Index tokens : {1, 2, 6, 23})
    for (const Index window : {1, 3, 6, 40})
      for (const Index global : {0, 1, 4}) {
        double sum = 0;
        for (Index p = 0; p < tokens; ++p)
          for (Index j = 0; j < tokens; ++j) sum += std::abs(p - j) < window || j < global || p < global;
        const AttentionMask mask =
            global > 0 ? AttentionMask{.causal = false, .sparse = SparsePattern::longformer(window, global)}
                       : AttentionMask{.causal = false, .window = window};
        EXPECT_DOUBLE_EQ(mean_visible_keys(tokens, mask), sum / static_cast<double>(tokens))
            << tokens << ", " << window << ", " << global;
      }
}

// Computed by hand: one layer, d_model 8, 2 heads of 4, 1 kv head, an FFN of 3 x 8 x 16, a
// vocabulary of 10.
TEST(ModelCosts, MatchHandComputedValues) {
  const std::string text = "[model]\nlayers=1\nd_model=8\nheads=2\nkv_heads=1\nd_ff=16\nseq_len=5\nnorm=none\n";
  const Index weights = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 16;
  const ModelCosts own = model_costs(parse_config(text, "test"), 10);
  EXPECT_EQ(own.parameters.total, weights + 2 * 10 * 8);
  EXPECT_DOUBLE_EQ(own.flops_per_token, 6 * (weights + 10 * 8) + 6 * 2 * 8 * 3.0);
  EXPECT_EQ(own.kv_bytes_per_token, 2 * 4 * 2);
  const ModelCosts tied = model_costs(parse_config(text + "tie_embeddings=true\n", "test"), 10);
  EXPECT_EQ(tied.parameters.total, weights + 10 * 8);
  EXPECT_DOUBLE_EQ(tied.flops_per_token, own.flops_per_token);
  // Latents of 6 and 3. Queries: 8 x 3 + 3 x 2 x (4 + 2). Keys and values:
  // 8 x (6 + 2) + 6 x 2 x (4 + 3). Output: 2 x 3 x 8.
  const ModelCosts latent = model_costs(
      parse_config("[model]\nlayers=1\nd_model=8\nheads=2\nd_ff=16\nseq_len=5\nnorm=none\nkv_latent=6\nq_latent=3\n"
                   "qk_rope_head_dim=2\nvalue_head_dim=3\n",
                   "test"),
      10);
  const Index of_latents = 8 * 3 + 3 + 3 * 2 * 6 + 8 * 8 + 6 + 6 * 2 * 7 + 2 * 3 * 8;
  EXPECT_EQ(latent.parameters.total, of_latents + 3 * 8 * 16 + 2 * 10 * 8);
  const Index norms_of_latents = 3 + 6;
  EXPECT_DOUBLE_EQ(latent.flops_per_token,
                   6 * (of_latents - norms_of_latents + 3 * 8 * 16 + 10 * 8) + 6 * 2 * (6 + 3) * 3.0);
  EXPECT_EQ(latent.kv_bytes_per_token, (6 + 2) * 2);
  // One of four experts, each of 3 x 8 x 6 weights.
  const ModelCosts moe =
      model_costs(parse_config(text + "[moe]\nexperts=4\ntop_k=1\nrenormalize=false\nd_ff=6\n", "test"), 10);
  EXPECT_EQ(moe.parameters.total - own.parameters.total, 4 * 3 * 8 * 6 + 4 * 8 - 3 * 8 * 16);
  EXPECT_DOUBLE_EQ(own.flops_per_token - moe.flops_per_token, 6 * (3 * 8 * 16 - 3 * 8 * 6 - 4 * 8));
}

// Parameters that no GEMM multiplies a token by have no FLOPs.
TEST(ModelCosts, LookupsNormsAndBiasesHaveNoFlops) {
  const std::string text = "layers=2\nd_model=8\nheads=2\nkv_heads=1\nd_ff=16\nseq_len=5\n";
  const auto of = [&](const std::string& more) {
    return model_costs(parse_config("[model]\n" + text + more, "test"), 10);
  };
  const ModelCosts plain = of("norm=none\nposition=none\n");
  for (const char* more :
       {"norm=none\nposition=learned\n", "norm=none\nposition=t5\n", "norm=layernorm\nposition=none\n",
        "norm=none\nposition=none\nbias=all\noutput_bias=true\n", "norm=rmsnorm\nposition=none\nqk_norm=head\n",
        "norm=none\nposition=none\nattention_sinks=true\n"}) {
    const ModelCosts with = of(more);
    EXPECT_GT(with.parameters.active, plain.parameters.active) << more;
    EXPECT_DOUBLE_EQ(with.flops_per_token, plain.flops_per_token) << more;
  }
  EXPECT_EQ(of("norm=none\nposition=learned\n").parameters.active - plain.parameters.active, 5 * 8);
}

TEST(ModelVocabulary, CoversTheTokensOfTheDataSet) {
  const auto of = [](const std::string& vocab) { return parse_config("[model]\nvocab=" + vocab + "\n", "test"); };
  EXPECT_EQ(model_vocab(of("0"), 257), 257);
  EXPECT_EQ(model_vocab(of("257"), 257), 257);
  EXPECT_EQ(model_vocab(of("320"), 257), 320);
  EXPECT_THROW(model_vocab(of("256"), 257), InputError);
}

}  // namespace
}  // namespace sy
