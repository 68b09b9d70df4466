#include "src/params/block_specs.h"

#include <gtest/gtest.h>

#include <map>

#include "src/params/specs.h"

namespace sy {
namespace {

TEST(BlockSpecs, DescribeTheOperationsOfEachLayer) {
  const Config config = parse_config(R"(
[model]
layers = 6
d_model = 48
heads = 6
kv_heads = 2
head_dim = 10
d_ff = 100
window = 7
rope_fraction = 0.75
qk_norm = true
norm_eps = 1e-6
bias = true
ffn = geglu
[moe]
experts = 9
top_k = 3
first_dense = 1
every = 2
d_ff = 20
shared_experts = 2
score = sigmoid
scale = 2.5
groups = 3
topk_groups = 2
)",
                                     "test");
  const std::vector<BlockSpec> blocks = block_specs(config);
  ASSERT_EQ(blocks.size(), 6u);
  EXPECT_EQ(count_moe(blocks), 3);
  for (std::size_t layer = 0; layer < blocks.size(); ++layer) {
    SCOPED_TRACE(layer);
    const BlockSpec& block = blocks[layer];
    const AttentionSpec& a = *block.find<AttentionSpec>();
    EXPECT_EQ(a.heads, 6);
    EXPECT_EQ(a.kv_heads, 2);
    EXPECT_EQ(a.key_width, 10);
    EXPECT_EQ(a.value_width, 10);
    EXPECT_EQ(a.window, 7);
    ASSERT_TRUE(a.rope);
    EXPECT_EQ(a.rope->rotated, 6);  // three quarters of ten, in whole pairs
    EXPECT_EQ(a.qk_norm, (QkNormSpec{QkNormScope::head, NormKind::rmsnorm, 1e-6f}));
    EXPECT_TRUE(a.qkv_bias && a.out_bias);
    EXPECT_EQ(block.norm.kind, NormKind::rmsnorm);
    EXPECT_EQ(block.find<MoeSpec>() != nullptr, layer % 2 == 1);
    if (const MoeSpec* moe = block.find<MoeSpec>()) {
      EXPECT_EQ(moe->experts, 9);
      EXPECT_EQ(moe->expert.width, 20);
      EXPECT_EQ(moe->expert.num_projections(), 2);
      EXPECT_FALSE(moe->expert.bias);
      ASSERT_TRUE(moe->shared);
      EXPECT_EQ(moe->shared->width, 40);
      EXPECT_EQ(moe->router.route.top_k, 3);
      EXPECT_EQ(moe->router.route.scale, 2.5f);
      EXPECT_EQ(moe->router.route.groups, 3);
    } else {
      EXPECT_EQ(block.find<MlpSpec>()->width, 100);
      EXPECT_TRUE(block.find<MlpSpec>()->bias);
    }
  }
}

TEST(BlockSpecs, DescribeLayersOfAPattern) {
  const std::vector<BlockSpec> blocks = block_specs(parse_config(R"(
[model]
layers = 4
d_model = 32
heads = 4
pattern = local*2, global
[attention.local]
window = 3
rope_theta = 100
rope_fraction = 0.5
[attention.global]
position = none
qk_norm = true
attention_softcap = 20
)",
                                                                 "test"));
  for (std::size_t layer = 0; layer < 4; ++layer) {
    SCOPED_TRACE(layer);
    const AttentionSpec& a = *blocks[layer].find<AttentionSpec>();
    const bool local = layer != 2;
    EXPECT_EQ(a.window, local ? 3 : 0);
    EXPECT_EQ(a.rope, local ? std::optional(RopeSpec{100, 4}) : std::nullopt);
    EXPECT_EQ(a.qk_norm.has_value(), !local);
    EXPECT_EQ(a.softcap, local ? 0 : 20);
  }
}

// Names of the parameters of layer 0 without "layers.0.", and of those outside of the layers, in
// order.
std::string names_of(const std::vector<std::string>& settings) {
  std::vector<std::string> overrides = {"--model.layers=1", "--model.norm=layernorm", "--model.norm_bias=false"};
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  std::string all;
  for (const ParamSpec& spec : param_specs(parse_config("", "test", overrides), 10))
    if (spec.name.find("attention.") == std::string::npos)
      all += (all.empty() ? "" : " ") + (spec.layer ? spec.name.substr(layer_prefix(0).size()) : spec.name);
  return all;
}

TEST(BlockSpecs, FollowNormPosition) {
  const std::string ffn = "mlp.up.weight mlp.down.weight ", ends = "final_norm.weight output.weight";
  EXPECT_EQ(names_of({}), "embedding.weight attention_norm.weight ffn_norm.weight " + ffn + ends);
  EXPECT_EQ(names_of({"--model.norm_position=post"}),
            "embedding.weight attention_norm.weight ffn_norm.weight " + ffn + "output.weight");
  EXPECT_EQ(names_of({"--model.norm_position=both"}),
            "embedding.weight attention_norm.weight attention_out_norm.weight ffn_norm.weight " + ffn +
                "ffn_out_norm.weight " + ends);
  EXPECT_EQ(names_of({"--model.norm_position=output"}),
            "embedding.weight attention_out_norm.weight " + ffn + "ffn_out_norm.weight " + ends);
  EXPECT_EQ(names_of({"--model.parallel_block=true"}), "embedding.weight attention_norm.weight " + ffn + ends);
  EXPECT_EQ(names_of({"--model.parallel_block=true", "--model.parallel_norms=2"}), names_of({}));
  EXPECT_EQ(
      names_of({"--model.position=learned", "--model.embedding_norm=true"}),
      "embedding.weight position.weight embedding_norm.weight attention_norm.weight ffn_norm.weight " + ffn + ends);
  EXPECT_EQ(names_of({"--model.position=sinusoidal", "--model.scale_embedding=true"}), names_of({}));
}

TEST(BlockSpecs, FollowBiasSettings) {
  const auto biases = [](const std::string& bias, const std::string& of_norms = "auto") {
    std::string all;
    for (const ParamSpec& spec : param_specs(parse_config("", "test",
                                                          {"--model.layers=1", "--model.norm=layernorm",
                                                           "--model.bias=" + bias, "--model.norm_bias=" + of_norms}),
                                             10))
      if (spec.name.ends_with(".bias")) all += spec.name.substr(0, spec.name.size() - 5) + " ";
    return all;
  };
  const std::string qkv = "layers.0.attention.q layers.0.attention.k layers.0.attention.v ";
  const std::string mlp = "layers.0.mlp.up layers.0.mlp.down ";
  EXPECT_EQ(biases("none"), "");
  EXPECT_EQ(biases("qkv"), qkv);
  EXPECT_EQ(biases("mlp"), mlp);
  EXPECT_EQ(biases("all", "false"), qkv + "layers.0.attention.out " + mlp);
  EXPECT_EQ(biases("all"),
            "layers.0.attention_norm " + qkv + "layers.0.attention.out layers.0.ffn_norm " + mlp + "final_norm ");
  EXPECT_EQ(biases("none", "true"), "layers.0.attention_norm layers.0.ffn_norm final_norm ");
}

TEST(BlockSpecs, HaveAQkNormWeightPerElementOverAllHeads) {
  const Config config = parse_config(
      "", "test",
      {"--model.layers=1", "--model.heads=8", "--model.kv_heads=2", "--model.head_dim=6", "--model.qk_norm=whole"});
  std::map<std::string, Shape> shapes;
  for (const ParamSpec& spec : param_specs(config, 10)) shapes[spec.name] = spec.shape;
  EXPECT_EQ(shapes["layers.0.attention.q_norm.weight"], (Shape{8, 6}));
  EXPECT_EQ(shapes["layers.0.attention.k_norm.weight"], (Shape{2, 6}));
  EXPECT_EQ(block_specs(config).front().find<AttentionSpec>()->qk_norm->scope, QkNormScope::projection);
}

// Keys of a scaling that is not selected do not change the table.
TEST(BlockSpecs, DescribeRopePerKindOfLayer) {
  const std::vector<BlockSpec> blocks = block_specs(parse_config(R"(
[model]
layers = 2
pattern = near, far
seq_len = 512
rope_factor = 4
rope_original_length = 128
[attention.near]
rope_pairs = interleaved
[attention.far]
rope_scaling = yarn
)",
                                                                 "test"));
  EXPECT_EQ(blocks[0].attention().rope, (RopeSpec{10000, 32, RopePairs::interleaved}));
  const RopeSpec& far = *blocks[1].attention().rope;
  EXPECT_EQ(far.scaling, RopeScaling::yarn);
  EXPECT_EQ(far.pairs, RopePairs::half);
  EXPECT_EQ(far.factor, 4);
  EXPECT_EQ(far.original_length, 128);
}

TEST(BlockSpecs, DescribeScoresAndSparsePatterns) {
  const std::vector<BlockSpec> blocks = block_specs(parse_config(R"(
[model]
layers = 4
d_model = 32
heads = 4
seq_len = 20
pattern = strided, fixed, longformer, plain
t5_buckets = 6
[attention.strided]
position = t5
attention = strided
attention_stride = 5
[attention.fixed]
position = alibi
attention = fixed
attention_stride = 7
attention_summary = 3
[attention.longformer]
attention = longformer
window = 9
global_tokens = 2
attention_sinks = true
)",
                                                                 "test"));
  const SparsePattern expected[] = {
      {.local = 5, .stride = 5}, {.block = 7, .summary = 3}, {.local = 9, .global = 2}, {}};
  for (std::size_t layer = 0; layer < 4; ++layer) {
    SCOPED_TRACE(layer);
    const AttentionSpec& a = *blocks[layer].find<AttentionSpec>();
    EXPECT_EQ(a.sparse, expected[layer]);
    EXPECT_EQ(a.window, 0);  // a window would hide tokens from all later ones
    EXPECT_EQ(a.sinks, layer == 2);
    ASSERT_EQ(a.relative.has_value(), layer < 2);
    if (!a.relative) continue;
    EXPECT_EQ(a.relative->kind, layer == 0 ? Position::t5 : Position::alibi);
    EXPECT_EQ(a.relative->buckets, 6);
    EXPECT_FALSE(a.rope);
  }
}

TEST(BlockSpecs, DescribeADenseModelWithoutPositions) {
  const std::vector<BlockSpec> blocks =
      block_specs(parse_config("[model]\nlayers = 2\nposition = none\nffn = relu\nnorm = none\n", "test"));
  EXPECT_EQ(count_moe(blocks), 0);
  EXPECT_FALSE(blocks.front().attention().rope || blocks.front().find<AttentionSpec>()->qk_norm);
  EXPECT_EQ(blocks.back().find<MlpSpec>()->num_projections(), 1);
  EXPECT_EQ(blocks.front().norm.kind, NormKind::none);
}

}  // namespace
}  // namespace sy
