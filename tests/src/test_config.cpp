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
                   "file.ini:3: model.layers is given twice, at file.ini:2 too");
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

// Everything at once, in the order of the lines; the first line of the message says where and how much.
TEST(Config, AllThatIsWrongIsSaidAtOnce) {
  const std::string message = MESSAGE_OF(InputError, parse_config("\xef\xbb\xbf[model]\r\nlayer = 3\r\n"
                                                                  "heads = -4\r\nd_model = x\r\nnothing\r\n",
                                                                  "f.ini", {"--train.lr=q", "--moe.top_k=0"}));
  const std::vector<std::string> lines = {"f.ini: 6 errors: correct each",
                                          "f.ini:2: unknown key 'model.layer': did you mean 'model.layers'?",
                                          "f.ini:3: model.heads = -4: must be from 1 to 65536",
                                          "f.ini:4: model.d_model = 'x': expected a whole number",
                                          "f.ini:5: 'nothing': lines are [section], key = value or # comment",
                                          "command line: train.lr = 'q': expected a number",
                                          "command line: moe.top_k = 0: must be from 1 to 1048576"};
  EXPECT_EQ(message, join(lines, std::string(1, next_line)));
  // What follows from several keys is said at the line of the one to change, with the others.
  EXPECT_EQ(MESSAGE_OF(InputError, parse_config("[moe]\nexperts = 4\ntop_k = 5\n[train]\nmin_lr = 1\n", "f.ini")),
            "f.ini: 2 errors: correct each" + std::string(1, next_line) +
                "f.ini:3: moe.top_k = 5 is more than moe.experts = 4: lower moe.top_k" + next_line +
                "f.ini:5: train.min_lr = 1 is above train.lr = 0.001, where train.schedule = cosine ends: lower it");
}

TEST(Config, AnyPathComesBack) {
  for (const std::string& path :
       {std::string("a#b"), std::string("a #b"), std::string("# "), std::string(" a "), std::string("\"a\""),
        std::string("a\\b"), std::string("\"\\x41#"), std::string("tab\tline\nreturn\r"), std::string("\x1b[31m"),
        std::string("\xff\xfe/[x]=y"), std::string("größe"), std::string()}) {
    Config c = with({});
    c.data.path = path;
    c.run.dir = path + "/run";
    const Config again = parse_config(to_ini(c), "again");
    EXPECT_EQ(again.data.path, path);
    EXPECT_EQ(again.run.dir, path + "/run");
  }
}

TEST(Config, CommentsAndQuotes) {
  const auto path = [](const std::string& line) { return parse_config("[data]\n" + line, "f").data.path; };
  EXPECT_EQ(path("path = a#b # c"), "a#b");
  EXPECT_EQ(path("path = \"a # b\"# c"), "a # b");
  EXPECT_EQ(path("path = \"\\x41\\\\\\\"\""), "A\\\"");
  EXPECT_EQ(path("path = a \"b\""), "a \"b\"");
  EXPECT_EQ(path("# path = a"), "");
  for (const char* line : {"path = \"a", "path = \"a\" b", "path = \"\\q\"", "path = \"\\x4\"", "path = \"\\", "= a"})
    EXPECT_BAD_INPUT(path(line), "f:2: ");
}

// A relative data.path of a file is looked for in the working directory, then beside the file.
TEST(Config, DataBesideTheFile) {
  const TempFolder folder;
  folder.write("some/data/dataset.ini", "");
  const auto file = folder.write("some/c.ini", "[data]\npath = data\n");
  EXPECT_EQ(read_config(file, {}).data.path, (folder.path() / "some/data").string());
  EXPECT_EQ(read_config(file, {"--data.path=data"}).data.path, "data");
}

// No value within its bounds makes a product that overflows or a size that no machine has.
TEST(Config, SizesThatNoMachineHas) {
  EXPECT_BAD_INPUT(with({"--train.global_batch=268435456"}), "tokens a step");
  EXPECT_BAD_INPUT(with({"--model.seq_len=268435456"}), "tokens a step");
  EXPECT_BAD_INPUT(with({"--model.layers=10000", "--model.d_model=1048576", "--model.heads=1024"}), "parameters");
  EXPECT_BAD_INPUT(with({"--moe.experts=1048576", "--moe.d_ff=16777216", "--moe.shared_experts=65536"}), "parameters");
  EXPECT_BAD_INPUT(with({"--train.micro_batch=65536", "--model.d_ff=16777216"}), "activations");
  EXPECT_BAD_INPUT(with({"--moe.experts=1024", "--moe.top_k=1024", "--train.micro_batch=65536", "--moe.d_ff=1"}),
                   "numbered");
  for (const char* key : {"--model.d_ff=-1", "--model.kv_heads=-1", "--model.head_dim=-1", "--moe.d_ff=-1",
                          "--model.d_model=9223372036854775807", "--model.heads=-9223372036854775808",
                          "--train.micro_batch=9223372036854775807", "--run.keep=-1", "--moe.capacity_factor=1e300",
                          "--moe.groups=9223372036854775807", "--train.eps=-1"})
    EXPECT_BAD_INPUT(with({key}), "must be from");
}

TEST(Config, DifferencesAreByEffect) {
  const Config a = with({"--model.layers=4", "--train.lr=0.1", "--train.seed=3", "--run.dir=x", "--moe.experts=2"});
  const Config b = with({"--model.layers=6", "--train.lr=0.2", "--model.attention_softcap=30", "--moe.experts=2"});
  const auto told = [&](Effect effect) {
    std::string all;
    for (const KeyDifference& d : differences(a, b, effect)) all += d.key + " " + d.here + " " + d.there + ";";
    return all;
  };
  EXPECT_EQ(told(Effect::model), "model.layers 4 6;");
  EXPECT_EQ(told(Effect::change), "model.attention_softcap 0 30;train.lr 0.1 0.2;");
  EXPECT_EQ(told(Effect::samples), "train.seed 3 1;");
  EXPECT_EQ(told(Effect::none), "run.dir x ;");
  EXPECT_EQ(differences(a, a, Effect::model).size(), 0u);
}

TEST(Config, DoubtsNameTheKey) {
  const auto doubt = [](const std::vector<std::string>& settings, Layout layout = {}) {
    return join(doubts(with(settings), layout));
  };
  EXPECT_NE(doubt({"--moe.experts=4", "--moe.top_k=1"}).find("set moe.renormalize = false"), std::string::npos);
  EXPECT_EQ(doubt({"--moe.experts=4", "--moe.top_k=1", "--moe.renormalize=false"}), "");
  EXPECT_EQ(doubt({"--moe.top_k=1"}), "");                                                      // dense
  const std::vector<std::string> global = {"--moe.experts=4", "--moe.aux_scope=global_batch"};  // of 16, 4 at a time
  EXPECT_NE(doubt(global).find("1 * 4 of the step's 16 sequences"), std::string::npos);
  EXPECT_NE(doubt(global).find("set train.micro_batch = 16"), std::string::npos);
  EXPECT_EQ(doubt(global, {4}), "");
  EXPECT_NE(doubt(global, {4, 2}).find("set train.micro_batch = 8"), std::string::npos);
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
