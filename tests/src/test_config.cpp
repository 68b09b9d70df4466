#include <gtest/gtest.h>

#include "src/config.h"
#include "src/model/router.h"
#include "src/params/specs.h"
#include "src/text/words.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

Config with(const std::vector<std::string>& overrides) {
  return parse_config("", "test", overrides);
}

TEST(Config, DefaultsThatFollowFromOtherKeys) {
  Config c = with({"--model.d_model=256", "--model.heads=8"});
  EXPECT_EQ(c.model.kv_heads, 8);
  EXPECT_EQ(c.model.head_dim, 32);
  EXPECT_EQ(c.model.d_ff, 704);  // 8/3 * 256 = 682.7, up to a multiple of 64
  EXPECT_EQ(c.moe.d_ff, 704);
  EXPECT_EQ(with({"--model.d_model=96", "--model.heads=6"}).model.d_ff, 256);  // 8/3 * 96 = 256 exactly
  EXPECT_EQ(with({"--model.ffn=gelu"}).model.d_ff, 1024);
  EXPECT_EQ(with({"--moe.d_ff=100"}).moe.d_ff, 100);
}

TEST(Config, TextAndBack) {
  const Config c = with({"--moe.experts=8", "--moe.drop_order=probability", "--train.lr=0.00037", "--data.path=a b=c",
                         "--run.resume=true", "--model.norm=layernorm", "--train.seed=18446744073709551615"});
  const std::string ini = to_ini(c);
  EXPECT_EQ(to_ini(parse_config(ini, "again")), ini);
  EXPECT_EQ(parse_config(ini, "again").data.path, "a b=c");
  EXPECT_EQ(parse_config(ini, "again").train.lr, 0.00037);
  EXPECT_EQ(config_keys().size(), static_cast<std::size_t>(std::count(ini.begin(), ini.end(), '=') - 1));
}

TEST(Config, WhatIsWrongIsNamed) {
  EXPECT_BAD_INPUT(with({"--model.layer=3"}), "did you mean 'model.layers'?");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.topk=2"}), "did you mean 'moe.top_k'?");
  EXPECT_BAD_INPUT(with({"--qqqqqqqqqq=3"}), "switchyard help config");
  EXPECT_BAD_INPUT(with({"--model.layers=3.5"}), "expected a whole number");
  EXPECT_BAD_INPUT(with({"--model.layers="}), "expected a whole number");
  EXPECT_BAD_INPUT(with({"--model.layers=99999999999999999999"}), "expected a whole number");
  EXPECT_BAD_INPUT(with({"--train.lr=nan"}), "expected a number");
  EXPECT_BAD_INPUT(with({"--run.resume=maybe"}), "expected true or false");
  EXPECT_BAD_INPUT(with({"--moe.score=tanh"}), "expected one of softmax, sigmoid");
  EXPECT_BAD_INPUT(with({"--model.layers=0"}), "model.layers = 0: must be from 1");
  EXPECT_BAD_INPUT(with({"--model.heads=0"}), "model.heads = 0");
  EXPECT_BAD_INPUT(with({"--model.heads=7"}), "not a multiple of model.heads");
  EXPECT_BAD_INPUT(with({"--model.kv_heads=3"}), "model.kv_heads = 3");
  EXPECT_BAD_INPUT(with({"--moe.experts=4", "--moe.top_k=5"}), "lower moe.top_k");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.groups=3"}), "moe.groups = 3");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.groups=4", "--moe.top_k=3"}), "raise moe.group_limit");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.first_dense=4"}), "leaves no MoE layer");
  EXPECT_BAD_INPUT(with({"--model.ffn=tanh"}), "swiglu");
  EXPECT_BAD_INPUT(with({"--train.beta2=1"}), "train.beta2 = 1");
  EXPECT_BAD_INPUT(with({"--train.steps=-1"}), "train.steps = -1");
  EXPECT_BAD_INPUT(with({"model.layers=2"}), "--section.key=value");
  EXPECT_BAD_INPUT(parse_config("[model]\nlayers = 2\nlayers = 3\n", "file.ini"),
                   "file.ini: model.layers is given twice");
  EXPECT_BAD_INPUT(parse_config("[model]\nlayers\n", "file.ini"), "file.ini");
  EXPECT_BAD_INPUT(read_config("/nonexistent/x.ini", {}), "/nonexistent/x.ini");
  EXPECT_BAD_INPUT(read_config("/", {}), "is a folder");
}

// A key that would be silently ignored is refused.
TEST(Config, WhatIsNotBuiltYetIsRefused) {
  for (const char* key : {"--model.norm_position=post", "--model.parallel_block=true", "--model.position=alibi",
                          "--model.attention=strided"})
    EXPECT_BAD_INPUT(with({key}), "not available in this version");
}

TEST(Config, DifferencesAreByKeyAndSection) {
  const Config a = with({"--model.layers=4", "--train.lr=0.1"}), b = with({"--model.layers=6", "--train.lr=0.2"});
  EXPECT_EQ(differences(a, b, {"model."}), std::vector<std::string>{"model.layers: 4 here, 6 there"});
  EXPECT_EQ(differences(a, a, {""}).size(), 0u);
  EXPECT_EQ(differences(a, b, {""}).size(), 2u);
}

TEST(Config, LayoutsThatDoNotDivideAreAnsweredWithThoseThatDo) {
  const Config c = with({"--moe.experts=6", "--model.heads=4", "--model.d_model=32", "--model.d_ff=64", "--moe.d_ff=10",
                         "--train.global_batch=12", "--train.micro_batch=1", "--model.seq_len=8"});
  EXPECT_BAD_INPUT(check_config_for_layout(c, {4, 1, 4, 1}), "moe.experts = 6 is not divisible by parallel.ep = 4");
  EXPECT_BAD_INPUT(check_config_for_layout(c, {4, 1, 4, 1}), "tp 1 ep 2 etp 1");
  EXPECT_BAD_INPUT(check_config_for_layout(c, {3, 3, 1, 1}), "model.heads = 4 is not divisible by parallel.tp = 3");
  EXPECT_BAD_INPUT(check_config_for_layout(c, {3, 1, 1, 3}), "moe.d_ff = 10 is not divisible by parallel.etp = 3");
  EXPECT_BAD_INPUT(check_config_for_layout(c, {5, 1, 1, 1}), "no layout of 5 ranks works");
  EXPECT_BAD_INPUT(check_config_for_layout(with({"--train.global_batch=16"}), {2, 1, 2, 1}), "need experts");
  EXPECT_NO_THROW(check_config_for_layout(c, {6, 2, 3, 2}));
}

TEST(Config, NearestName) {
  EXPECT_EQ(nearest("trian", {"train", "prepare"}), "train");
  EXPECT_EQ(nearest("zzzzzzzzzz", {"train", "prepare"}), "");
}

// Mixtral 8x7B: 46.7 B parameters, 12.9 B active (Jiang et al., 2024).
TEST(Specs, CountsOfMixtral) {
  const Config c = with({"--model.layers=32", "--model.d_model=4096", "--model.heads=32", "--model.kv_heads=8",
                         "--model.head_dim=128", "--moe.experts=8", "--moe.top_k=2", "--moe.d_ff=14336"});
  const ParamCount n = count_params(c, 32000);
  EXPECT_EQ(n.total, 46702792704);
  EXPECT_EQ(n.active, 12879925248);
}

TEST(Capacity, IsTheCeilingOfTheShare) {
  EXPECT_EQ(expert_capacity(1.25, 2, 64, 8), 20);
  EXPECT_EQ(expert_capacity(1.0, 2, 7, 4), 4);    // 3.5
  EXPECT_EQ(expert_capacity(1.1, 2, 10, 2), 11);  // the product in floating point is 11.000000000000002
  EXPECT_EQ(expert_capacity(0.01, 1, 8, 8), 1);
  EXPECT_EQ(expert_capacity(0, 2, 64, 8), 0);  // dropless
}

}  // namespace
}  // namespace sy
