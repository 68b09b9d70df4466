#include <gtest/gtest.h>

#include <random>

#include "src/config.h"
#include "src/config/layout.h"
#include "src/model/router.h"
#include "src/optimizers/update_rule.h"
#include "src/params/specs.h"
#include "src/text/json.h"
#include "src/text/strings.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

Config with(const std::vector<std::string>& overrides) {
  return parse_config("", "test", overrides);
}

TEST(Config, NamesTheOptimizersOfTheTableOfUpdateRules) {
  const ConfigKey* key = find_config_key("train.optimizer");
  ASSERT_EQ(key->values.size(), update_rules().size());
  for (std::size_t i = 0; i < key->values.size(); ++i) {
    const UpdateRule& rule = update_rules()[i];
    EXPECT_EQ(key->values[i], rule.name);
    EXPECT_TRUE(has(key->help, fmt::format("{}: {}.", rule.name, rule.meaning))) << key->help;
    const Config c = with({fmt::format("--train.optimizer={}", rule.name)});
    EXPECT_EQ(&update_rule(c.train.optimizer), &rule);
    EXPECT_EQ(parse_config(to_ini(c), "test").train.optimizer, c.train.optimizer);
  }
  EXPECT_EQ(update_rule(Optimizer::adamw).name, "adamw");
  EXPECT_BAD_INPUT(with({"--train.optimizer=adam"}), "train.optimizer = 'adam': expected one of adamw, sgd, muon");
}

TEST(Config, DerivesDefaultsFromOtherKeys) {
  Config c = with({"--model.d_model=256", "--model.heads=8"});
  EXPECT_EQ(c.model.kv_heads, 8);
  EXPECT_EQ(c.model.head_dim, 32);
  EXPECT_EQ(c.model.d_ff, 704);  // 8/3 * 256 = 682.7, rounded up to a multiple of 64
  EXPECT_EQ(c.moe.d_ff, 704);
  EXPECT_EQ(with({"--model.d_model=96", "--model.heads=6"}).model.d_ff, 256);  // 8/3 * 96, exactly
  EXPECT_EQ(with({"--model.ffn=gelu"}).model.d_ff, 1024);
  EXPECT_EQ(with({"--moe.d_ff=100"}).moe.d_ff, 100);
  EXPECT_EQ(with({"--moe.d_ff=100", "--moe.shared_experts=3"}).moe.shared_d_ff, 300);
  EXPECT_EQ(with({"--moe.shared_experts=1", "--moe.shared_d_ff=70"}).moe.shared_d_ff, 70);
  EXPECT_EQ(with({"--model.ffn=swiglu_clamped"}).model.swish_beta, 1.702);
  EXPECT_EQ(with({}).model.swish_beta, 1);
  EXPECT_EQ(with({"--model.ffn=gelu"}).moe.ffn, "gelu");
  EXPECT_EQ(with({"--moe.experts=4", "--moe.ffn=swiglu_clamped", "--model.ffn=relu"}).model.swish_beta, 1.702);
}

// Each stack has the numbers of its own activation.
TEST(ConfigOfStacks, ResolvesTheNumbersOfActivations) {
  const auto pairs = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"--model.kind=encoder_decoder", "--model.sentinels=8"});
    return with(settings);
  };
  const auto betas = [](const Config& c) {
    const Config again = parse_config(to_ini(c), "again");
    EXPECT_EQ(to_ini(again), to_ini(c));
    return std::pair(again.stacks[0].model.swish_beta, again.stacks[1].model.swish_beta);
  };
  const auto numbers = [](double encoder, double decoder) { return std::pair(encoder, decoder); };
  EXPECT_EQ(betas(pairs({"--model.ffn=gelu", "--encoder.ffn=swiglu_clamped"})), numbers(1.702, 1));
  EXPECT_EQ(betas(pairs({"--model.ffn=swiglu_clamped", "--decoder.ffn=swiglu"})), numbers(1.702, 1));
  EXPECT_EQ(betas(pairs({"--decoder.swish_beta=2"})), numbers(1, 2));
  EXPECT_EQ(betas(pairs({"--model.swish_beta=1.5", "--decoder.ffn=swiglu_clamped"})), numbers(1.5, 1.5));
  EXPECT_EQ(betas(pairs({"--model.ffn=gelu", "--moe.experts=4", "--moe.ffn=swiglu_clamped", "--encoder.experts=0"})),
            numbers(1, 1.702));
  EXPECT_NO_THROW(pairs({"--model.ffn=gelu", "--decoder.ffn=swiglu_clamped", "--model.swish_beta=1.702"}));
  EXPECT_NO_THROW(pairs({"--model.ffn=gelu", "--decoder.ffn=swiglu_clamped", "--model.ffn_clamp=5"}));
  EXPECT_BAD_INPUT(pairs({"--model.ffn=gelu", "--model.swish_beta=2"}), "model.swish_beta = 2 with model.ffn = gelu");
  EXPECT_BAD_INPUT(pairs({"--encoder.ffn=gelu", "--encoder.swish_beta=2"}),
                   "encoder.swish_beta = 2 with encoder.ffn = gelu");
  EXPECT_BAD_INPUT(pairs({"--encoder.ffn=gelu", "--model.ffn_clamp=5"}), "it is of swiglu_clamped");
}

// Values of [model] and [moe] that both stacks replace have no effect.
TEST(ConfigOfStacks, ComparesAndChecksTheValuesOfStacks) {
  const auto pairs = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"--model.kind=encoder_decoder", "--model.sentinels=8", "--model.d_model=32",
                                       "--encoder.heads=2", "--decoder.heads=2"});
    return with(settings);
  };
  const auto differing = [](const Config& a, const Config& b, ResumePolicy policy) {
    std::string keys;
    for (const KeyDifference& d : differences(a, b, policy)) keys += d.key + " ";
    return keys;
  };
  const Config c = pairs({"--model.heads=4"});
  EXPECT_EQ(differing(pairs({"--model.heads=4", "--model.head_dim=16"}), c, ResumePolicy::must_match), "");
  EXPECT_EQ(differing(pairs({"--model.heads=3"}), c, ResumePolicy::must_match), "");
  EXPECT_EQ(differing(pairs({"--model.heads=4", "--encoder.head_dim=8"}), c, ResumePolicy::must_match),
            "encoder.head_dim ");
  EXPECT_EQ(
      differing(pairs({"--model.heads=4", "--encoder.seq_len=256", "--decoder.seq_len=128"}),
                pairs({"--model.heads=4", "--encoder.seq_len=256", "--decoder.seq_len=128", "--model.seq_len=128"}),
                ResumePolicy::reorders_samples),
      "model.seq_len ");
  EXPECT_BAD_INPUT(pairs({"--decoder.heads=3"}), "not a multiple of decoder.heads = 3");
  EXPECT_BAD_INPUT(with({"--model.kind=encoder_decoder", "--model.sentinels=8", "--model.d_model=32", "--model.heads=3",
                         "--encoder.heads=4"}),
                   "not a multiple of model.heads = 3");
}

TEST(Config, RoundTripsThroughText) {
  const Config c = with({"--moe.experts=8", "--moe.drop_order=probability", "--train.lr=0.00037", "--data.path=a b=c",
                         "--run.resume=true", "--model.norm=layernorm", "--train.seed=18446744073709551615"});
  const std::string ini = to_ini(c);
  EXPECT_EQ(to_ini(parse_config(ini, "again")), ini);
  EXPECT_EQ(parse_config(ini, "again").data.path, "a b=c");
  EXPECT_EQ(parse_config(ini, "again").train.lr, 0.00037);
  const std::vector<ConfigKey>& keys = config_keys();
  const auto of_kinds = std::count_if(keys.begin(), keys.end(), [](const ConfigKey& k) {
    return k.name.find(".NAME.") != k.name.npos || k.name.starts_with("encoder.");
  });
  EXPECT_EQ(static_cast<std::ptrdiff_t>(keys.size()), of_kinds + std::count(ini.begin(), ini.end(), '=') - 1);
}

TEST(Config, NamesInvalidKeysAndValues) {
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
  for (const char* key : {"q_lora_rank", "qk_rope_head_dim", "v_head_dim", "latent_norm_eps"})
    EXPECT_BAD_INPUT(with({fmt::format("--model.{}=1", key)}),
                     fmt::format("model.{} = 1 is of latent attention alone: set model.kv_lora_rank", key));
  const auto latent = [](const std::string& other) {
    return with({"--model.kv_lora_rank=16", "--model.qk_rope_head_dim=4", other});
  };
  EXPECT_NO_THROW(latent("--model.bias=mlp"));
  EXPECT_BAD_INPUT(latent("--model.qk_rope_head_dim=0"), "an even number from 2 on");
  EXPECT_BAD_INPUT(latent("--model.qk_rope_head_dim=3"), "an even number from 2 on");
  EXPECT_BAD_INPUT(latent("--model.kv_heads=2"), "each of 8 heads makes keys and values of its own: set it to 0");
  EXPECT_BAD_INPUT(latent("--model.qk_norm=head"), "whose latents are normalised");
  EXPECT_BAD_INPUT(latent("--model.clip_qkv=8"), "latent attention has no limit: set it to 0");
  EXPECT_BAD_INPUT(with({"--model.clip_qkv=8", "--model.qk_norm=head"}), "or model.qk_norm to none or whole");
  EXPECT_BAD_INPUT(latent("--model.bias=qkv"), "latent attention has no biases");
  EXPECT_BAD_INPUT(latent("--model.rope_fraction=0.1"), "0.1 of model.qk_rope_head_dim = 4 leaves no pair");
  EXPECT_BAD_INPUT(with({"--model.kv_lora_rank=16", "--model.qk_rope_head_dim=4", "--model.pattern=a,b",
                         "--attention.a.qk_norm=whole"}),
                   "attention.a.qk_norm = whole with model.kv_lora_rank");
  EXPECT_BAD_INPUT(with({"--moe.experts=4", "--moe.top_k=5"}), "lower moe.top_k");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.groups=3"}), "moe.groups = 3");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.groups=4", "--moe.top_k=3"}), "raise moe.topk_groups");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.first_dense=4"}), "leaves no MoE layer");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.shared_gate=true"}), "moe.shared_gate needs moe.shared_experts");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.shared_d_ff=9"}), "moe.shared_d_ff needs moe.shared_experts");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.choice=noisy"}), "noisy needs noise above 0");
  EXPECT_BAD_INPUT(with({"--moe.experts=8", "--moe.noise=1"}), "noisy needs noise above 0");
  EXPECT_BAD_INPUT(with({"--model.ffn=gelu", "--model.swish_beta=2"}), "it is of silu, swiglu and swiglu_clamped");
  EXPECT_BAD_INPUT(with({"--model.ffn_clamp=2"}), "it is of swiglu_clamped");
  EXPECT_BAD_INPUT(with({"--model.segments=2", "--model.segment_token=3"}), "it needs an encoder with 2 segments");
  EXPECT_BAD_INPUT(with({"--model.kind=encoder", "--model.segments=1", "--model.segment_token=3"}), "with 2 segments");
  EXPECT_BAD_INPUT(with({"--moe.experts=4", "--model.ffn=xielu"}), "moe.ffn = xielu: its learned parameters");
  EXPECT_BAD_INPUT(with({"--moe.experts=4", "--moe.ffn=xielu"}), "moe.ffn = xielu: its learned parameters");
  EXPECT_EQ(with({"--moe.experts=4", "--moe.ffn=swiglu", "--model.ffn=xielu"}).ffn_activation().act, Activation::xielu);
  EXPECT_BAD_INPUT(with({"--model.qk_norm=whole", "--model.qk_norm_after_rope=true"}), "set that to head");
  EXPECT_BAD_INPUT(with({"--model.ffn=tanh"}), "swiglu");
  EXPECT_BAD_INPUT(with({"--moe.experts=4", "--moe.learned_noise=true"}), "moe.choice = top: set it to noisy");
  EXPECT_BAD_INPUT(with({"--moe.ffn=tanh"}), "moe.ffn = 'tanh': expected one of relu");
  EXPECT_BAD_INPUT(with({"--moe.experts=4", "--moe.ffn=swiglu_clamped"}), "both would have the same model.swish_beta");
  EXPECT_BAD_INPUT(with({"--train.beta2=1"}), "train.beta2 = 1");
  EXPECT_BAD_INPUT(with({"--train.steps=-1"}), "train.steps = -1");
  EXPECT_BAD_INPUT(with({"model.layers=2"}), "--section.key=value");
  EXPECT_BAD_INPUT(parse_config("[model]\nlayers = 2\nlayers = 3\n", "file.ini"),
                   "file.ini:3: model.layers is given twice, at file.ini:2 too");
  EXPECT_BAD_INPUT(parse_config("[model]\nlayers\n", "file.ini"), "file.ini");
  EXPECT_BAD_INPUT(read_config("/nonexistent/x.ini", {}), "/nonexistent/x.ini");
  EXPECT_BAD_INPUT(read_config("/", {}), "is a folder");
}

// Keys that were once true or false. Files with these values keep their meaning.
TEST(Config, ReadsFilesOfEarlierVersions) {
  for (const char* value : {"true", "1", "yes", "on", "all"})
    EXPECT_EQ(with({std::string("--model.bias=") + value}).model.bias, Biases::all) << value;
  for (const char* value : {"false", "0", "no", "off", "none"})
    EXPECT_EQ(with({std::string("--model.bias=") + value}).model.bias, Biases::none) << value;
  EXPECT_EQ(with({"--model.qk_norm=true"}).model.qk_norm, QkNormKind::head);
  EXPECT_EQ(with({"--model.qk_norm=false"}).model.qk_norm, QkNormKind::none);
  EXPECT_EQ(differences(with({"--model.bias=true"}), with({"--model.bias=all"}), ResumePolicy::must_match).size(), 0u);
  EXPECT_BAD_INPUT(with({"--model.bias=maybe"}), "expected one of none, all, qkv, mlp");
}

constexpr const char* former_names = R"([model]
kv_latent = 16
q_latent = 12
rope_head_dim = 4
value_head_dim = 8
latent_eps = 1e-6
[moe]
experts = 8
groups = 4
group_limit = 2
bias_rate = 0.001
placement = order.json
[parallel]
node = 2
)";
constexpr std::pair<const char*, const char*> renamed[] = {
    {"model.kv_latent", "model.kv_lora_rank"},         {"model.q_latent", "model.q_lora_rank"},
    {"model.rope_head_dim", "model.qk_rope_head_dim"}, {"model.value_head_dim", "model.v_head_dim"},
    {"model.latent_eps", "model.latent_norm_eps"},     {"moe.group_limit", "moe.topk_groups"},
    {"moe.bias_rate", "moe.bias_update_rate"},         {"moe.placement", "moe.expert_map"},
    {"parallel.node", "parallel.ranks_per_node"},
};

TEST(RenamedKeys, ReadACheckpointWithOneWarning) {
  std::vector<std::string> warnings;
  const Config c = parse_config(former_names, "step", {}, &warnings);
  EXPECT_EQ(c.model.kv_lora_rank, 16);
  EXPECT_EQ(c.model.q_lora_rank, 12);
  EXPECT_EQ(c.model.qk_rope_head_dim, 4);
  EXPECT_EQ(c.model.v_head_dim, 8);
  EXPECT_EQ(c.model.latent_norm_eps, 1e-6);
  EXPECT_EQ(c.moe.topk_groups, 2);
  EXPECT_EQ(c.moe.bias_update_rate, 0.001);
  EXPECT_EQ(c.moe.expert_map, "order.json");
  EXPECT_EQ(c.parallel.ranks_per_node, 2);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].find("step has former names of keys: "), 0u) << warnings[0];
  for (const auto& [old_key, new_key] : renamed)
    EXPECT_NE(warnings[0].find(fmt::format("{} is {} now", old_key, new_key)), std::string::npos) << warnings[0];

  const std::string ini = to_ini(c);
  const Config again = parse_config(ini, "again", {}, &warnings);
  EXPECT_EQ(warnings.size(), 1u) << warnings.back();
  EXPECT_EQ(to_ini(again), ini);
  for (const ResumePolicy policy :
       {ResumePolicy::report, ResumePolicy::reorders_samples, ResumePolicy::must_match, ResumePolicy::ignore})
    EXPECT_EQ(differences(c, again, policy).size(), 0u);
}

TEST(RenamedKeys, AreAcceptedOnlyInRunFolders) {
  const TempFolder folder;
  const std::filesystem::path file = folder.write("config.ini", former_names);
  const std::string message = MESSAGE_OF(InputError, read_config(file, {}));
  for (const auto& [old_key, new_key] : renamed)
    EXPECT_NE(message.find(fmt::format("unknown key '{}': it is {} now", old_key, new_key)), std::string::npos)
        << message;
  EXPECT_BAD_INPUT(with({"--moe.bias_rate=0.1"}),
                   "command line: unknown key 'moe.bias_rate': it is moe.bias_update_rate");

  std::filesystem::create_directory(folder.path() / "checkpoints");
  std::vector<std::string> warnings;
  EXPECT_EQ(read_config(file, {}, {}, nullptr, &warnings).parallel.ranks_per_node, 2);
  EXPECT_EQ(warnings.size(), 1u);
  EXPECT_EQ(read_config(folder.write("other.ini", "base = config.ini\n"), {}).moe.topk_groups, 2);
  EXPECT_BAD_INPUT(read_config(folder.write("copy.ini", former_names), {}), "it is moe.topk_groups now");
  EXPECT_BAD_INPUT(read_config(file, {"--moe.group_limit=1"}), "it is moe.topk_groups now");
}

TEST(RenamedKeys, RejectBothNamesAtOnce) {
  EXPECT_BAD_INPUT(parse_config("[moe]\nbias_rate = 0.1\nbias_update_rate = 0.1\n", "step"),
                   "step:3: moe.bias_update_rate is given twice, at step:2 too");
}

TEST(Config, RejectsImpossiblePositions) {
  // The embedding is common to all layers. A kind may still have positions other than those of the
  // embedding.
  EXPECT_BAD_INPUT(with({"--model.pattern=a,b", "--attention.b.position=learned"}),
                   "attention.b.position = learned: it is the embedding that has such positions, for all layers: set "
                   "model.position");
  EXPECT_BAD_INPUT(with({"--model.position=alibi", "--model.pattern=a,b", "--attention.b.position=sinusoidal"}),
                   "set model.position");
  for (const char* position : {"rope", "alibi", "t5", "none"})
    EXPECT_NO_THROW(
        with({"--model.pattern=a,b", "--model.position=learned", std::string("--attention.b.position=") + position}));
  for (const char* scaling : {"dynamic", "llama3", "yarn", "longrope"})
    EXPECT_BAD_INPUT(with({std::string("--model.rope_scaling=") + scaling, "--model.rope_short_factors=1"}),
                     fmt::format("model.rope_scaling = {} needs model.rope_original_length", scaling));
  EXPECT_BAD_INPUT(
      with({"--model.rope_scaling=longrope", "--model.rope_original_length=16", "--model.head_dim=8",
            "--model.rope_long_factors=1,2,3"}),
      "model.rope_long_factors are 3 numbers: model.rope_scaling = longrope needs one above 0 for each of 4");
  const std::vector<std::string> longrope = {"--model.rope_scaling=longrope", "--model.rope_original_length=16",
                                             "--model.head_dim=8", "--model.rope_long_factors=1,2,3,4"};
  const auto with_short = [&](const std::string& factors) {
    std::vector<std::string> all = longrope;
    all.push_back("--model.rope_short_factors=" + factors);
    return with(all);
  };
  EXPECT_NO_THROW(with(longrope));
  EXPECT_NO_THROW(with_short("1,1,1,2"));
  EXPECT_BAD_INPUT(with_short("1,2"), "model.rope_short_factors are 2 numbers: model.rope_scaling = longrope needs");
  EXPECT_BAD_INPUT(with({"--model.rope_long_factors=1,x"}), "expected numbers with commas between them");
  EXPECT_BAD_INPUT(with({"--model.rope_scaling=linear", "--model.rope_factor=0.5"}),
                   "model.rope_factor = 0.5: must be");
  EXPECT_BAD_INPUT(with({"--model.rope_scaling=ntk", "--model.head_dim=2"}), "leaves one pair");
  EXPECT_BAD_INPUT(
      with({"--model.rope_scaling=llama3", "--model.rope_original_length=16", "--model.rope_low_frequency=4"}),
      "model.rope_low_frequency = 4 is not below model.rope_high_frequency = 4");
  EXPECT_BAD_INPUT(with({"--model.rope_scaling=yarn", "--model.rope_original_length=16", "--model.rope_theta=1"}),
                   "yarn needs more than 1");
  EXPECT_BAD_INPUT(with({"--model.pattern=a,b", "--attention.b.rope_scaling=yarn"}),
                   "model.rope_scaling = yarn needs model.rope_original_length");
  const Config c = with({"--model.rope_long_factors=1, 2.5,3", "--model.rope_scaling=linear"});
  EXPECT_EQ(parse_config(to_ini(c), "again").model.rope_long_factors, (std::vector<double>{1, 2.5, 3}));
}

TEST(Config, RejectsImpossibleBlocks) {
  EXPECT_BAD_INPUT(with({"--model.parallel_block=true", "--model.norm_position=post"}),
                   "set it to pre, both or output");
  EXPECT_BAD_INPUT(with({"--model.parallel_block=true", "--model.parallel_norms=3"}), "must be from 1 to 2");
  EXPECT_BAD_INPUT(with({"--model.embedding_norm=true", "--model.norm=none"}), "leaves nothing to compute");
}

// Scores and patterns of attention that exclude each other, in [model] and in a kind of layer.
TEST(Config, RejectsContradictoryAttention) {
  EXPECT_BAD_INPUT(with({"--model.position=t5", "--model.attention_softcap=30"}),
                   "model.attention_softcap = 30 with model.position = t5, whose biases are not capped");
  EXPECT_BAD_INPUT(with({"--model.pattern=a,b", "--model.attention_softcap=30", "--attention.b.position=alibi"}),
                   "model.attention_softcap = 30 with model.position = alibi, whose biases are not capped");
  EXPECT_BAD_INPUT(with({"--model.attention=longformer"}), "model.attention = longformer needs model.window");
  EXPECT_BAD_INPUT(with({"--model.pattern=a,b", "--attention.b.attention=longformer", "--attention.b.window=0"}),
                   "model.attention = longformer needs attention.b.window");
  EXPECT_BAD_INPUT(with({"--model.attention=strided", "--model.window=5"}),
                   "model.window = 5 with model.attention = strided, which has a window of its own: set it to 0");
  EXPECT_BAD_INPUT(with({"--model.attention=fixed", "--model.attention_stride=4", "--model.attention_summary=5"}),
                   "model.attention_summary = 5 is more than model.attention_stride = 4: lower it");
  EXPECT_BAD_INPUT(with({"--model.t5_buckets=64", "--model.t5_max_distance=32"}),
                   "model.t5_max_distance = 32 is not above the 32 distances");
  const std::vector<std::string> global{"--model.kind=encoder", "--model.attention=longformer", "--model.window=4",
                                        "--model.position=learned", "--model.global_projections=true"};
  const auto with_global = [&](std::vector<std::string> more) {
    more.insert(more.begin(), global.begin(), global.end());
    return with(more);
  };
  EXPECT_TRUE(with_global({}).model.global_projections);
  EXPECT_BAD_INPUT(with_global({"--model.kind=decoder"}), "model.global_projections = true with model.kind = decoder");
  EXPECT_BAD_INPUT(with_global({"--model.attention=full"}), "set this to longformer, or model.global_projections");
  EXPECT_BAD_INPUT(with_global({"--model.global_tokens=0"}), "model.global_tokens = 0: set this to 1 or more");
  EXPECT_BAD_INPUT(with_global({"--model.position=rope"}), "set this to learned, sinusoidal or none");
  EXPECT_BAD_INPUT(with_global({"--model.qk_norm=head"}), "with model.qk_norm = head: set this to none");
  EXPECT_BAD_INPUT(with_global({"--model.clip_qkv=3"}), "with model.clip_qkv = 3: set this to 0");
  EXPECT_BAD_INPUT(with_global({"--model.attention_sinks=true"}), "with model.attention_sinks = true");
  EXPECT_BAD_INPUT(with_global({"--model.kv_lora_rank=8", "--model.qk_rope_head_dim=4"}), "model.kv_lora_rank = 8");
  EXPECT_BAD_INPUT(with_global({"--data.documents=pack"}), "with data.documents = pack: set this to join");
  EXPECT_BAD_INPUT(with_global({"--train.lora_rank=2"}), "with train.lora_rank = 2: set this to 0");
  EXPECT_BAD_INPUT(with_global({"--train.qk_clip=100"}), "with train.qk_clip = 100: set this to 0");
  EXPECT_BAD_INPUT(with({"--model.attention=sideways"}), "expected one of causal, full, strided, fixed, longformer");
}

// ---- patterns ----

constexpr const char* mixed = R"([model]
layers = 7
pattern = local*2, global
window = 5
[attention.local]
rope_theta = 500
qk_norm = true
[attention.global]
position = none
window = 0
)";

std::string kinds_of(const Config& c) {
  std::string out;
  for (Index layer = 0; layer < c.model.layers; ++layer) out += (layer ? " " : "") + c.model.pattern.kind_of(layer);
  return out;
}

TEST(Pattern, IsRepeatedOverTheLayersAndCut) {
  EXPECT_EQ(kinds_of(parse_config(mixed, "f")), "local local global local local global local");
  EXPECT_EQ(kinds_of(parse_config(mixed, "f", {"--model.layers=2"})), "local local");
  EXPECT_EQ(kinds_of(with({"--model.pattern= a *1,b * 2 , a", "--model.layers=6"})), "a b b a a b");
  EXPECT_EQ(kinds_of(with({"--model.layers=3"})), "  ");
  EXPECT_EQ(kinds_of(with({"--model.pattern=A-1_x*10000", "--model.layers=1"})), "A-1_x");
}

TEST(Pattern, HasAtMostAHundredKinds) {
  std::string hundred = "k0";
  for (int i = 1; i < 100; ++i) hundred += fmt::format(",k{}", i);
  EXPECT_EQ(with({"--model.layers=101", "--model.pattern=" + hundred + ",k5"}).kinds.size(), 100u);
  EXPECT_BAD_INPUT(with({"--model.layers=101", "--model.pattern=" + hundred + ",one_more"}), "up to 100 kinds");
}

TEST(Pattern, MergesKeysOfAKindWithThoseOfTheModel) {
  // The section may precede [model], and the command line may change either.
  const std::string text = mixed;
  const std::size_t sections = text.find("[attention.local]");
  for (const std::string& ini : {text, text.substr(sections) + text.substr(0, sections)}) {
    const Config c = parse_config(ini, "f", {"--attention.global.attention_softcap=30", "--model.rope_fraction=0.5"});
    const Config::Model &local = c.model_of(1), &global = c.model_of(2);
    EXPECT_EQ(local.window, 5);
    EXPECT_EQ(local.rope_theta, 500);
    EXPECT_EQ(local.qk_norm, QkNormKind::head);
    EXPECT_EQ(local.position, Position::rope);
    EXPECT_EQ(local.rope_fraction, 0.5);
    EXPECT_EQ(local.attention_softcap, 0);
    EXPECT_EQ(local.head_dim, 32);  // keys that follow from others are set, too
    EXPECT_EQ(global.window, 0);
    EXPECT_EQ(global.position, Position::none);
    EXPECT_EQ(global.rope_theta, 10000);
    EXPECT_EQ(global.attention_softcap, 30);
    EXPECT_EQ(c.model.window, 5);
  }
  EXPECT_EQ(parse_config(mixed, "f", {"--attention.local.window=3", "--attention.local.window=4"}).model_of(0).window,
            4);
  // A kind without a section is like [model].
  EXPECT_EQ(with({"--model.pattern=a,b", "--model.window=9", "--attention.a.window=3"}).model_of(1).window, 9);
}

TEST(Pattern, RoundTripsThroughText) {
  const Config c = parse_config(mixed, "f");
  const std::string ini = to_ini(c);
  EXPECT_NE(ini.find("pattern = local*2, global\n"), std::string::npos);
  EXPECT_NE(
      ini.find("\n[attention.local]\nrope_theta = 500\nqk_norm = head\n\n[attention.global]\nposition = none\nwindow = "
               "0\n\n[moe]\n"),
      std::string::npos);
  const Config again = parse_config(ini, "again");
  EXPECT_EQ(to_ini(again), ini);
  for (const ResumePolicy policy :
       {ResumePolicy::report, ResumePolicy::reorders_samples, ResumePolicy::must_match, ResumePolicy::ignore})
    EXPECT_EQ(differences(c, again, policy).size(), 0u);
  // Keys that a kind inherits from [model] follow it.
  EXPECT_EQ(parse_config(ini, "again", {"--model.rope_theta=7"}).model_of(2).rope_theta, 7);
}

TEST(Pattern, NamesInvalidPatterns) {
  for (const char* bad : {"local*0", "local*-1", "*3", ",", "a,,b", "a, ", "a,", "a*", "a*x", "a*2*3", "a b", "3",
                          "a.b", "a*10001", "a*9999,b*2", "a*99999999999999999999", "a=b", "[a]", "\xff"})
    EXPECT_EQ(
        MESSAGE_OF(InputError, with({std::string("--model.pattern=") + bad, "--attention.a.window=3"})),
        fmt::format(
            "command line: model.pattern = '{}': expected names of up to 100 kinds, each with how many layers of it follow "
            "one another, up to 10000 in all: local*5, global",
            bad));
  const auto message = [](const std::string& text, const std::vector<std::string>& settings = {}) {
    return MESSAGE_OF(InputError, parse_config(text, "f", settings));
  };
  // Section of a kind that no layer has: one error, at its first line.
  EXPECT_EQ(message("[model]\npattern = local, global\n[attention.locl]\nwindow = 3\nqk_norm = true\n"),
            "f:4: attention.locl.window: model.pattern names no kind 'locl': did you mean 'local'?");
  EXPECT_EQ(message("[attention.local]\nwindow = 3\n"),
            "f:2: attention.local.window: model.pattern names no kind 'local': set it, as in model.pattern = local*5, "
            "global");
  EXPECT_EQ(
      message(mixed, {"--attention.sparse_and_wide.window=3"}),
      "command line: attention.sparse_and_wide.window: model.pattern names no kind 'sparse_and_wide': it names local, "
      "global");
  EXPECT_EQ(message(mixed, {"--attention.local.windw=3"}),
            "command line: unknown key 'attention.local.windw': did you mean 'attention.local.window'?");
  EXPECT_EQ(message(mixed, {"--atention.local.window=3"}),
            "command line: unknown key 'atention.local.window': did you mean 'attention.local.window'?");
  EXPECT_EQ(message(mixed, {"--attention.local.heads=3"}),
            "command line: attention.local.heads: all layers have the same model.heads: set that one");
  EXPECT_EQ(message("[model]\npattern = a\n[attention.a]\nwindow = -1\nqk_norm = 3\nwindow = 2\n"),
            "f: 2 errors: correct each" + std::string(1, next_line) +
                "f:5: attention.a.qk_norm = '3': expected one of none, head, whole, head_layernorm" + next_line +
                "f:6: attention.a.window is given twice, at f:4 too: keep one");
  EXPECT_EQ(message("[model]\npattern = a\n[attention.a]\nwindow = -1\n"),
            "f:4: attention.a.window = -1: must be from 0 to 1000000000000000");
  EXPECT_EQ(
      message(mixed, {"--attention.local.rope_fraction=0.01"}),
      "command line: attention.local.rope_fraction = 0.01 of model.head_dim = 32 leaves no pair to rotate: raise it");
  // If the kinds inherit the key from [model], there is one error, about [model].
  EXPECT_EQ(message(mixed, {"--model.rope_fraction=0.01"}),
            "command line: model.rope_fraction = 0.01 of model.head_dim = 32 leaves no pair to rotate: raise it");
}

TEST(Pattern, ReportsDifferencesByLayer) {
  const auto listed = [](const Config& a, const Config& b, ResumePolicy policy) {
    std::string all;
    for (const KeyDifference& d : differences(a, b, policy)) all += d.key + ": " + d.here + " " + d.there + ";";
    return all;
  };
  const Config c = parse_config(mixed, "f");
  EXPECT_EQ(listed(parse_config(mixed, "f", {"--attention.local.window=4"}), c, ResumePolicy::must_match),
            "attention.local.window of layer 0: 4 5;");
  EXPECT_EQ(listed(parse_config(mixed, "f", {"--attention.local.rope_theta=7"}), c, ResumePolicy::must_match),
            "attention.local.rope_theta: 7 500;");
  EXPECT_EQ(listed(parse_config(mixed, "f", {"--attention.global.attention_softcap=7"}), c, ResumePolicy::report),
            "attention.global.attention_softcap of layer 2: 7 0;");
  EXPECT_EQ(listed(parse_config(mixed, "f", {"--model.pattern=local, global"}), c, ResumePolicy::must_match),
            "attention.global.position of layer 1: none rope;model.position of layer 2: rope none;"
            "model.rope_theta of layer 1: 10000 500;attention.local.rope_theta of layer 2: 500 10000;"
            "attention.global.window of layer 1: 0 5;model.window of layer 2: 5 0;"
            "model.qk_norm of layer 1: none head;attention.local.qk_norm of layer 2: head none;");
  // Other names for the same layers give the same model.
  const Config spelt =
      with({"--model.layers=7", "--model.pattern=x,y,z", "--model.window=5", "--attention.x.rope_theta=500",
            "--attention.x.qk_norm=true", "--attention.y.rope_theta=500", "--attention.y.qk_norm=true",
            "--attention.z.position=none", "--attention.z.window=0"});
  EXPECT_EQ(listed(spelt, c, ResumePolicy::must_match) + listed(spelt, c, ResumePolicy::report), "");
  EXPECT_NE(listed(with({"--model.layers=7", "--model.window=5"}), c, ResumePolicy::must_match), "");
}

// All errors in one message, in the order of the lines. Its first line says where they are and how
// many.
TEST(Config, ReportsAllErrorsAtOnce) {
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
  // An error of several keys has the line of the key to change, and names the other keys.
  EXPECT_EQ(MESSAGE_OF(InputError, parse_config("[moe]\nexperts = 4\ntop_k = 5\n[train]\nmin_lr = 1\n", "f.ini")),
            "f.ini: 2 errors: correct each" + std::string(1, next_line) +
                "f.ini:3: moe.top_k = 5 is more than moe.experts = 4: lower moe.top_k" + next_line +
                "f.ini:5: train.min_lr = 1 is above train.lr = 0.001, where train.schedule = cosine ends: lower it");
}

TEST(Config, ReportsOtherErrorsBesideAnUnknownKey) {
  const std::string message = MESSAGE_OF(InputError, with({"--moe.topk=1", "--run.dtype=fp8", "--train.min_lr=1"}));
  EXPECT_NE(message.find("unknown key 'moe.topk'"), message.npos) << message;
  EXPECT_NE(message.find("run.dtype = 'fp8'"), message.npos) << message;
  EXPECT_NE(MESSAGE_OF(InputError, with({"--moe.topk=1", "--train.min_lr=1"})).find("train.min_lr = 1 is above"),
            message.npos);
}

TEST(Config, ReportsABinaryFileAsOneError) {
  const std::string bytes("a\n\x01\x00=\n[x\ny", 9);
  EXPECT_EQ(MESSAGE_OF(InputError, parse_config(bytes, "f")), "f:2: a byte 0x01, which no text has: give a text file");
}

TEST(Config, RoundTripsAnyPath) {
  for (const std::string& path :
       {std::string("a#b"), std::string("a #b"), std::string("# "), std::string(" a "), std::string("\"a\""),
        std::string("a\\b"), std::string("\"\\x41#"), std::string("a ;b"), std::string(";"),
        std::string("tab\tline\nreturn\r"), std::string("\x1b[31m"), std::string("\xff\xfe/[x]=y"),
        std::string("größe"), std::string()}) {
    Config c = with({});
    c.data.path = path;
    c.run.dir = path + "/run";
    const Config again = parse_config(to_ini(c), "again");
    EXPECT_EQ(again.data.path, path);
    EXPECT_EQ(again.run.dir, path + "/run");
  }
}

TEST(Config, ParsesCommentsAndQuotes) {
  const auto path = [](const std::string& line) { return parse_config("[data]\n" + line, "f").data.path; };
  EXPECT_EQ(path("path = a#b # c"), "a#b");
  EXPECT_EQ(path("path = \"a # b\"# c"), "a # b");
  EXPECT_EQ(path("path = \"\\x41\\\\\\\"\""), "A\\\"");
  EXPECT_EQ(path("path = a \"b\""), "a \"b\"");
  EXPECT_EQ(path("# path = a"), "");
  EXPECT_EQ(path("; path = a"), "");
  EXPECT_EQ(path("path = a;b ; c # d"), "a;b");
  EXPECT_EQ(path("path = \"a ; b\" ; c"), "a ; b");
  EXPECT_EQ(path("path = ; none"), "");
  for (const char* line : {"path = \"a", "path = \"a\" b", "path = \"\\q\"", "path = \"\\x4\"", "path = \"\\", "= a"})
    EXPECT_BAD_INPUT(path(line), "f:2: ");
}

// A relative data.path of a file is searched in the working directory, then beside the file.
TEST(Config, ResolvesDataPathBesideTheFile) {
  const TempFolder folder;
  folder.write("some/data/dataset.ini", "");
  const auto file = folder.write("some/c.ini", "[data]\npath = data\n");
  EXPECT_EQ(read_config(file, {}).data.path, (folder.path() / "some/data").string());
  EXPECT_EQ(read_config(file, {"--data.path=data"}).data.path, "data");
}

TEST(Config, ReadsIntegersWithAnExponent) {
  EXPECT_EQ(with({"--train.steps=1e9"}).train.steps, 1000000000);
  EXPECT_EQ(with({"--train.steps=1.5E+3"}).train.steps, 1500);
  EXPECT_EQ(with({"--train.steps=1200e-2"}).train.steps, 12);
  EXPECT_EQ(with({"--train.warmup=0e5"}).train.warmup, 0);
  EXPECT_EQ(with({"--train.seed=1e19"}).train.seed, 10000000000000000000u);
  for (const char* text : {"1.5", "1e", "1e-1", "15e-1", "1e1.0", "e3", ".e3", "1e99", "1e999", "1e20", "1e 3", "+1e3"})
    EXPECT_BAD_INPUT(with({fmt::format("--train.steps={}", text)}), "expected a whole number");
}

TEST(Config, InheritsKeysFromABaseFile) {
  const TempFolder folder;
  folder.write("data/dataset.ini", "");
  folder.write("first.ini", "[train]\nsteps = 3\nlr = 0.5\n[data]\npath = data\n");
  folder.write("more/second.ini",
               "base = ../first.ini\n[train]\nsteps = 4\n[model]\npattern = a, b\n"
               "[attention.a]\nwindow = 5\n");
  const auto file = folder.write("more/deep/third.ini", "base = ../second.ini\n[train]\nwarmup = 2\n");
  ConfigOrigins origins;
  const Config c = read_config(file, {"--train.clip=2"}, {}, &origins);
  EXPECT_EQ(c.train.steps, 4);
  EXPECT_EQ(c.train.lr, 0.5);
  EXPECT_EQ(c.train.warmup, 2);
  EXPECT_EQ(c.kinds.at(0).model.window, 5);
  EXPECT_EQ(c.data.path, (folder.path() / "data").string());  // beside the file with the key
  EXPECT_EQ(read_config(file, {"--train.steps=5"}).train.steps, 5);
  const std::string here = folder.path().string();
  EXPECT_EQ(origins.at("train.lr"), here + "/first.ini:3");
  EXPECT_EQ(origins.at("train.steps"), here + "/more/second.ini:3");
  EXPECT_EQ(origins.at("attention.a.window"), here + "/more/second.ini:7");
  EXPECT_EQ(origins.at("train.warmup"), file.string() + ":3");
  EXPECT_EQ(origins.at("train.clip"), "command line");
  EXPECT_EQ(origins.count("train.eps"), 0u);
}

TEST(Config, NamesAnInvalidBaseFile) {
  const TempFolder folder;
  const std::string here = folder.path().string();
  const auto message = [&](const std::string& text) {
    return MESSAGE_OF(InputError, read_config(folder.write("c.ini", text), {}));
  };
  folder.write("wrong.ini", "[train]\nsteps = x\nlr = 1\n");
  EXPECT_EQ(message("base = wrong.ini\n[train]\nclip = y\n"),
            fmt::format("{0}/c.ini: 2 errors: correct each{1}{0}/c.ini:3: train.clip = 'y': expected a number{1}"
                        "{0}/wrong.ini:2: train.steps = 'x': expected a whole number",
                        here, next_line));
  folder.write("fine.ini", "[train]\nlr = 1e-5\n");
  EXPECT_EQ(message("base = fine.ini\n[train]\nmin_lr = 1\n").find(here + "/c.ini:3: train.min_lr = 1 is above"), 0u);
  EXPECT_EQ(message("base = fine.ini\n[train]\nlr = 2e-5\n").find(here + "/c.ini: train.min_lr = 0.0001 is above"), 0u);
  EXPECT_NE(message("base = nowhere.ini\n").find("c.ini:1: base = nowhere.ini: cannot read the configuration"),
            std::string::npos);
  EXPECT_NE(message("base = .\n").find("is a folder"), std::string::npos);
  EXPECT_NE(message("base = fine.ini\nbase = fine.ini\n").find("c.ini:2: base is given twice"), std::string::npos);
  EXPECT_NE(message("[train]\nbase = fine.ini\n").find("unknown key 'train.base'"), std::string::npos);
  EXPECT_BAD_INPUT(parse_config("base = fine.ini", "a checkpoint"), "unknown key 'base'");
  // Cycles, and chains that are too long.
  EXPECT_NE(message("base = c.ini\n").find("c.ini:1: base = c.ini: it is this file"), std::string::npos);
  folder.write("a.ini", "base = ./c.ini\n");
  EXPECT_NE(message("base = a.ini\n").find("a.ini:1: base = ./c.ini: it is this file"), std::string::npos);
  for (int i = 0; i < 9; ++i)
    folder.write(fmt::format("{}.ini", i), fmt::format("base = {}.ini\n[train]\nlr = 1\n", i + 1));
  folder.write("9.ini", "[train]\nsteps = 7\n");
  EXPECT_EQ(read_config(folder.path() / "2.ini", {}).train.steps, 7);
  EXPECT_BAD_INPUT(read_config(folder.path() / "1.ini", {}), "8.ini:1: base = 9.ini: at most 7 files may be the base");
}

// `switchyard config` prints the same configuration, in the format of a file.
TEST(Config, PrintsOriginsAsComments) {
  const TempFolder folder;
  const auto file = folder.write("c.ini", "[model]\npattern = a\nd_model = 96\nheads = 6\n[attention.a]\nwindow = 3\n");
  ConfigOrigins origins;
  const Config c = read_config(file, {"--run.dir=a # b", "--moe.experts=4"}, {}, &origins);
  const std::string text = to_ini(c, &origins);
  EXPECT_EQ(to_ini(parse_config(text, "again")), to_ini(c));
  const auto says = [&](const std::string& line) { return text.find("\n" + line + "\n") != std::string::npos; };
  EXPECT_TRUE(says("d_model = 96                     # " + file.string() + ":3")) << text;
  EXPECT_TRUE(says("window = 3                       # " + file.string() + ":6")) << text;
  EXPECT_TRUE(says("dir = \"a # b\"                    # command line")) << text;
  EXPECT_TRUE(says("layers = 4                       # default")) << text;
  EXPECT_TRUE(says("head_dim = 16                    # default, by other keys")) << text;
  const Json json = to_json(c, origins);
  EXPECT_EQ(json["moe.experts"]["value"].get<Index>(), 4);
  EXPECT_EQ(json["moe.experts"]["origin"].get<std::string>(), "command line");
  EXPECT_EQ(json["train.seed"]["value"].get<Index>(), 1);
  EXPECT_EQ(json["model.tie_embeddings"]["value"].get<bool>(), false);
}

// No value within its bounds gives a product that overflows, or a size that no machine has.
TEST(Config, RejectsSizesBeyondAnyMachine) {
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

TEST(Config, GroupsDifferencesByResumePolicy) {
  const Config a = with({"--model.layers=4", "--train.lr=0.1", "--train.seed=3", "--run.dir=x", "--moe.experts=2"});
  const Config b = with({"--model.layers=6", "--train.lr=0.2", "--model.attention_softcap=30", "--moe.experts=2"});
  const auto listed = [&](ResumePolicy policy) {
    std::string all;
    for (const KeyDifference& d : differences(a, b, policy)) all += d.key + " " + d.here + " " + d.there + ";";
    return all;
  };
  EXPECT_EQ(listed(ResumePolicy::must_match), "model.layers 4 6;");
  EXPECT_EQ(listed(ResumePolicy::report), "model.attention_softcap 0 30;train.lr 0.1 0.2;");
  EXPECT_EQ(listed(ResumePolicy::reorders_samples), "train.seed 3 1;");
  EXPECT_EQ(listed(ResumePolicy::ignore), "run.dir x ;");
  EXPECT_EQ(differences(a, a, ResumePolicy::must_match).size(), 0u);
}

TEST(Config, NamesTheKeyInWarnings) {
  const auto doubt = [](const std::vector<std::string>& settings, Layout layout = {}) {
    return join(config_warnings(with(settings), layout));
  };
  EXPECT_NE(doubt({"--moe.experts=4", "--moe.top_k=1", "--moe.renormalize=true"}).find("set moe.renormalize = auto"),
            std::string::npos);
  EXPECT_EQ(doubt({"--moe.experts=4", "--moe.top_k=1"}), "");
  EXPECT_EQ(doubt({"--moe.experts=4", "--moe.top_k=1", "--moe.renormalize=false"}), "");
  EXPECT_NE(doubt({"--train.warmup=7", "--train.steps=6"}).find("lower train.warmup"), std::string::npos);
  EXPECT_EQ(doubt({"--train.warmup=6", "--train.steps=6"}), "");
  EXPECT_EQ(doubt({"--moe.top_k=1"}), "");  // dense
  EXPECT_NE(doubt({"--model.rope_factor=4"}).find("model.rope_factor = 4 has no effect"), std::string::npos);
  EXPECT_EQ(doubt({"--model.rope_factor=4", "--model.rope_scaling=linear"}), "");
  EXPECT_NE(doubt({"--train.momentum=0.8"}).find("train.momentum = 0.8 has no effect"), std::string::npos);
  EXPECT_EQ(doubt({"--train.momentum=0.8", "--train.optimizer=sgd"}), "");
  EXPECT_NE(doubt({"--train.mtp_loss_weight=0.1"}).find("model.mtp_depth is 0"), std::string::npos);
  // A step has 16 sequences, in micro-batches of 4.
  const std::vector<std::string> global = {"--moe.experts=4", "--moe.aux_scope=global_batch"};
  EXPECT_NE(doubt(global).find("1 * 4 of the step's 16 sequences"), std::string::npos);
  EXPECT_NE(doubt(global).find("set train.micro_batch = 16"), std::string::npos);
  EXPECT_EQ(doubt(global, {4}), "");
  EXPECT_NE(doubt(global, {4, 2}).find("set train.micro_batch = 8"), std::string::npos);
  const std::vector<std::string> batch_norm = {"--model.norm=batchnorm"};
  EXPECT_NE(doubt(batch_norm, {4}).find("a training pass sees more than the earlier tokens"), std::string::npos);
  EXPECT_EQ(doubt({"--model.norm=batchnorm", "--model.kind=encoder", "--model.mask_token=9"}, {4}), "");
  EXPECT_NE(doubt({"--model.norm=batchnorm", "--model.kind=encoder", "--model.mask_token=9"}, {2}).find("2 * 4 of the"),
            std::string::npos);
}

TEST(Config, DerivesRenormalizeFromTopKUnlessSet) {
  const auto resolved = [](const std::vector<std::string>& settings) {
    const Config config = with(settings);
    EXPECT_EQ(to_ini(parse_config(to_ini(config), "again")), to_ini(config));
    return value_of(config, "moe.renormalize");
  };
  EXPECT_EQ(resolved({}), "true");
  EXPECT_EQ(resolved({"--moe.top_k=1"}), "false");
  EXPECT_EQ(resolved({"--moe.top_k=1", "--moe.renormalize=auto"}), "false");
  EXPECT_EQ(resolved({"--moe.top_k=4", "--moe.renormalize=auto"}), "true");
  // Spelling of older files.
  EXPECT_EQ(resolved({"--moe.top_k=1", "--moe.renormalize=true"}), "true");
  EXPECT_EQ(resolved({"--moe.top_k=1", "--moe.renormalize=yes"}), "true");
  EXPECT_EQ(resolved({"--moe.renormalize=false"}), "false");
  EXPECT_EQ(resolved({"--moe.renormalize=0"}), "false");
  Config::Moe unread;
  EXPECT_TRUE(unread.renormalizes());
  unread.top_k = 1;
  EXPECT_FALSE(unread.renormalizes());
}

TEST(Config, RejectsAJointLossPerSequence) {
  EXPECT_BAD_INPUT(with({"--moe.experts=4", "--moe.aux_layers=joint"}), "set moe.aux_scope to global_batch");
  EXPECT_NO_THROW(with({"--moe.experts=4", "--moe.aux_layers=joint", "--moe.aux_scope=micro_batch"}));
  EXPECT_NO_THROW(with({"--moe.aux_layers=joint"}));  // dense
}

TEST(Config, ReadsChangesOfTheBatch) {
  const Config c = with({"--train.global_batch=8", "--train.batch_ramp=3:16,10: 12"});
  EXPECT_EQ(value_of(c, "train.batch_ramp"), "3:16, 10:12");
  EXPECT_EQ(parse_config(to_ini(c), "again").train.batch_of(10), 12);
  for (const auto& [step, batch] : {std::pair<Index, Index>{1, 8}, {2, 8}, {3, 16}, {9, 16}, {10, 12}, {1000, 12}})
    EXPECT_EQ(c.train.batch_of(step), batch) << step;
  EXPECT_EQ(c.train.largest_batch(), 16);
  for (const char* wrong : {"3", "3:", ":3", "1:8", "5:8, 5:16", "5:8, 4:16", "5:0", "5:8,", "a:8", "5:8:9"})
    EXPECT_BAD_INPUT(with({fmt::format("--train.batch_ramp={}", wrong)}), "expected STEP:BATCH");
  EXPECT_BAD_INPUT(with({"--train.batch_ramp=2:268435456"}), "tokens a step");
  // Every batch must fit the layout.
  EXPECT_NO_THROW(check_config_for_layout(c, {1, 1, 1, 1}));
  EXPECT_BAD_INPUT(check_config_for_layout(c, {2, 1, 1, 1}),
                   "a batch of train.batch_ramp = 12 is not divisible by 2 data-parallel ranks");
}

TEST(Config, ReadsChangesOfTheBlend) {
  const Config c = with({"--data.blend_schedule=1:a=1,  20: b-2=0.5   c_3=0 a=2.5"});
  const auto& changes = c.data.blend_schedule.changes;
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[1].step, 20);
  EXPECT_EQ(changes[1].weights, (std::vector<BlendSchedule::Weight>{{"b-2", 0.5}, {"c_3", 0}, {"a", 2.5}}));
  EXPECT_EQ(value_of(c, "data.blend_schedule"), "1:a=1, 20:b-2=0.5 c_3=0 a=2.5");
  EXPECT_EQ(to_ini(parse_config(to_ini(c), "again")), to_ini(c));
  for (const char* wrong :
       {"5", "5:", ":a=1", "0:a=1", "5:a", "5:=1", "5:a=", "5:a=-1", "5:a=nan", "5:a=inf", "5:a=0 b=0", "5:a=1 a=2",
        "5:a=1, 5:b=1", "5:a=1, 4:b=1", "5:a=1,", "5:a=1, b=2", "5:a=1; 6:b=1"})
    EXPECT_BAD_INPUT(with({fmt::format("--data.blend_schedule={}", wrong)}), "expected STEP:NAME=WEIGHT");
}

TEST(Config, CountsTheSamplesBeforeAStep) {
  const Config c = with({"--train.global_batch=8", "--train.batch_ramp=3:16, 10:12"});
  Index samples = 0;
  for (Index step = 1; step < 30; ++step) {
    ASSERT_EQ(c.train.samples_before(step), samples) << step;
    samples += c.train.batch_of(step);
  }
  EXPECT_EQ(c.train.samples_before(INT64_MAX), Index{1} << 61);
}

TEST(Config, ChecksSchedulesAndMup) {
  EXPECT_BAD_INPUT(with({"--train.decay_steps=5"}), "train.decay_steps = 5 with train.schedule = cosine");
  EXPECT_BAD_INPUT(with({"--train.decay_shape=1-sqrt"}), "train.decay_shape = 1-sqrt with train.schedule = cosine");
  EXPECT_NO_THROW(with({"--train.schedule=wsd", "--train.decay_steps=5", "--train.decay_shape=1-sqrt"}));
  EXPECT_BAD_INPUT(with({"--train.target_loss=3"}), "train.target_loss = 3 follows the validation loss");
  EXPECT_BAD_INPUT(with({"--model.mup=true"}), "set it to the model.d_model for which train.lr was chosen");
  EXPECT_BAD_INPUT(with({"--model.mup_base_width=64"}), "set it to 0, or model.mup to true");
  EXPECT_BAD_INPUT(with({"--model.mup=true", "--model.mup_base_width=64", "--train.optimizer=sgd"}),
                   "its learning rates are of adamw");
  const Config c = with({"--model.mup=true", "--model.mup_base_width=64", "--model.head_dim=16"});
  EXPECT_EQ(c.model.attention_scale, 1.0 / 16);
  EXPECT_EQ(parse_config(to_ini(c), "again").model.attention_scale, 1.0 / 16);
}

TEST(Config, SuggestsLayoutsThatDivide) {
  const Config c = with({"--moe.experts=6", "--model.heads=4", "--model.d_model=32", "--model.d_ff=64", "--moe.d_ff=10",
                         "--train.global_batch=12", "--train.micro_batch=1", "--model.seq_len=8"});
  EXPECT_BAD_INPUT(check_config_for_layout(c, {4, 1, 4, 1}), "moe.experts = 6 is not divisible by parallel.ep = 4");
  EXPECT_BAD_INPUT(check_config_for_layout(c, {4, 1, 4, 1}),
                   "on 4 ranks these layouts work: tp 1 ep 2 etp 1 (add --parallel.ep=2), ");
  EXPECT_BAD_INPUT(check_config_for_layout(c, {3, 3, 1, 1}), "model.heads = 4 is not divisible by parallel.tp = 3");
  EXPECT_BAD_INPUT(check_config_for_layout(c, {3, 1, 1, 3}), "moe.d_ff = 10 is not divisible by parallel.etp = 3");
  EXPECT_BAD_INPUT(check_config_for_layout(c, {5, 1, 1, 1}), "no layout of 5 ranks works");
  EXPECT_BAD_INPUT(check_config_for_layout(with({"--train.global_batch=16"}), {2, 1, 2, 1}), "need experts");
  EXPECT_NO_THROW(check_config_for_layout(c, {6, 2, 3, 2}));
  EXPECT_NO_THROW(check_config_for_layout(c, {6, 2, 3, 2, 2}));
  // Half of an expert would be on a node.
  EXPECT_BAD_INPUT(check_config_for_layout(c, {6, 2, 3, 2, 3}), "parallel.ranks_per_node = 3");
  EXPECT_BAD_INPUT(check_config_for_layout(c, {12, 1, 6, 1, 4}), "tp 1 ep 6 etp 1 (add --parallel.ranks_per_node=1)");
  EXPECT_EQ(with({"--parallel.ep=4", "--parallel.ranks_per_node=2"}).layout(4), (Layout{4, 1, 4, 1, 2}));
}

// Optimal string alignment by its definition.
std::size_t alignment(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  const std::string_view shorter_a = a.substr(1), shorter_b = b.substr(1);
  std::size_t least = std::min(
      {alignment(shorter_a, b) + 1, alignment(a, shorter_b) + 1, alignment(shorter_a, shorter_b) + (a[0] != b[0])});
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0])
    least = std::min(least, alignment(a.substr(2), b.substr(2)) + 1);
  return least;
}

TEST(Config, NearestNameIsThatOfTheDefinition) {
  std::mt19937_64 random(1);
  const auto name = [&] {
    std::string text(1 + random() % 6, 'a');
    for (char& c : text) c = "ab-"[random() % 3];
    return text;
  };
  int found = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string unknown = name();
    const std::vector<std::string> known = {name(), name(), name()};
    const std::size_t suffix = unknown.size() - (unknown.find_last_of(".-") + 1);
    std::size_t bound = std::max<std::size_t>(1, (suffix + 1) / 3);
    std::string expected;
    for (const std::string& k : known)
      if (const std::size_t distance = alignment(unknown, k); distance <= bound) {
        expected = k;
        if (distance == 0) break;
        bound = distance - 1;
      }
    ASSERT_EQ(nearest(unknown, known), expected) << unknown << " in " << fmt::format("{}", fmt::join(known, " "));
    found += !expected.empty();
  }
  EXPECT_GT(found, 20);
}

TEST(Config, FindsTheNearestName) {
  EXPECT_EQ(nearest("trian", {"train", "prepare"}), "train");
  EXPECT_EQ(nearest("zzzzzzzzzz", {"train", "prepare"}), "");
  // A name is near if about a third of its letters differ, without the section or the dashes.
  EXPECT_EQ(nearest("model.colour", {"model.vocab", "model.heads"}), "");
  EXPECT_EQ(nearest("modle.layer", {"model.layers"}), "model.layers");
  EXPECT_EQ(nearest("modle.heads", {"model.layers"}), "");
  EXPECT_EQ(nearest("--json", {"--run", "--help"}), "");
  EXPECT_EQ(nearest("--dryrun", {"--dry-run", "--ranks"}), "--dry-run");
  // Two swapped letters are one difference.
  EXPECT_EQ(nearest("--trian", {"--train", "--ranks"}), "--train");
  EXPECT_EQ(nearest("--tpo", {"--top", "--json"}), "--top");
  EXPECT_EQ(nearest("--jsno", {"--top", "--json"}), "--json");
  EXPECT_EQ(nearest("--top", {"--opt"}), "");
  EXPECT_EQ(nearest("--dyr-run", {"--dry-run", "--ranks"}), "--dry-run");
}

// Mixtral 8x7B: 46.7 B parameters, 12.9 B active (Jiang et al., 2024).
TEST(ParamCount, MatchesMixtral) {
  const Config c = with({"--model.layers=32", "--model.d_model=4096", "--model.heads=32", "--model.kv_heads=8",
                         "--model.head_dim=128", "--moe.experts=8", "--moe.top_k=2", "--moe.d_ff=14336"});
  const ParamCount n = count_params(c, 32000);
  EXPECT_EQ(n.total, 46702792704);
  EXPECT_EQ(n.active, 12879925248);
}

TEST(Capacity, IsTheShareRoundedUp) {
  EXPECT_EQ(expert_capacity(1.25, 2, 64, 8), 20);
  EXPECT_EQ(expert_capacity(1.0, 2, 7, 4), 4);    // 3.5
  EXPECT_EQ(expert_capacity(1.1, 2, 10, 2), 11);  // floating point gives 11.000000000000002
  EXPECT_EQ(expert_capacity(0.01, 1, 8, 8), 1);
  EXPECT_EQ(expert_capacity(0, 2, 64, 8), 0);  // dropless
}

}  // namespace
}  // namespace sy
