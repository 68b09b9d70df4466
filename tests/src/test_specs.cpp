#include "src/params/specs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "src/params/store.h"

namespace sy {
namespace {

// Alternating dense and MoE layers, with parameters of every kind.
Config model(const std::vector<std::string>& overrides = {}) {
  return parse_config(R"(
[model]
layers = 12
d_model = 24
heads = 6
kv_heads = 3
d_ff = 30
bias = true
qk_norm = true
norm = layernorm
[moe]
experts = 6
every = 3
d_ff = 12
shared_experts = 1
shared_gate = true
bias = true
router_bias = true
)",
                      "test", overrides);
}

TEST(ParamSpecs, HaveAxesDecayAndLayer) {
  std::map<std::string, const ParamSpec*> by_name;
  const std::vector<ParamSpec> specs = param_specs(model(), 37);
  for (const ParamSpec& s : specs) by_name[s.name] = &s;
  struct Expected {
    const char* name;
    Axes summed;
    bool decays;
    std::optional<Index> layer;
  };
  const Axes all = Axis::dp | Axis::tp;
  constexpr bool decays = true, stays = false;
  for (const Expected& e : {Expected{"embedding.weight", Axis::dp, decays, {}},
                            {"layers.0.attention_norm.weight", all, stays, 0},
                            {"layers.1.attention_norm.bias", all, stays, 1},
                            {"layers.2.attention.q.weight", Axis::dp, decays, 2},
                            {"layers.10.attention.k.bias", Axis::dp, stays, 10},
                            {"layers.11.attention.k_norm.weight", all, stays, 11},
                            {"layers.5.attention.out.weight", Axis::dp, decays, 5},
                            {"layers.5.attention.out.bias", all, stays, 5},
                            {"layers.1.mlp.up.weight", Axis::dp, decays, 1},
                            {"layers.1.mlp.down.bias", all, stays, 1},
                            {"layers.9.moe.router.weight", all, decays, 9},
                            {"layers.3.moe.experts.up.weight", Axis::edp, decays, 3},
                            {"layers.3.moe.experts.down.weight", Axis::edp, decays, 3},
                            {"layers.3.moe.experts.up.bias", Axis::edp, stays, 3},
                            {"layers.3.moe.experts.down.bias", Axis::edp, stays, 3},
                            {"layers.3.moe.router.bias", all, stays, 3},
                            {"layers.6.moe.shared_gate.weight", all, decays, 6},
                            {"layers.6.moe.shared.down.weight", Axis::dp, decays, 6},
                            {"final_norm.weight", all, stays, {}},
                            {"output.weight", Axis::dp, decays, {}}}) {
    ASSERT_TRUE(by_name.count(e.name)) << e.name;
    const ParamSpec& s = *by_name[e.name];
    EXPECT_EQ(s.summed(), e.summed) << e.name << ": " << s.summed().str();
    EXPECT_EQ(s.decays, e.decays) << e.name;
    EXPECT_EQ(s.layer, e.layer) << e.name;
  }
}

// Neither "matrix" nor the number of dimensions tells which parameters decay.
TEST(ParamSpecs, DecayOnlyGemmWeightsAndEmbeddingTables) {
  const auto decay = [](const std::string& name, const std::vector<std::string>& overrides) {
    for (const ParamSpec& s : param_specs(model(overrides), 37))
      if (s.name == name) return s.decays;
    ADD_FAILURE() << "no " << name;
    return false;
  };
  constexpr bool decays = true, stays = false;
  EXPECT_EQ(decay("position.weight", {"--model.position=learned"}), decays);
  EXPECT_EQ(
      decay("layers.3.moe.router.noise.weight", {"--moe.choice=noisy", "--moe.noise=1", "--moe.learned_noise=true"}),
      decays);
  EXPECT_EQ(decay("relative_bias.weight", {"--model.position=t5"}), stays);
  EXPECT_EQ(decay("layers.0.attention.q_norm.weight", {"--model.qk_norm=whole"}), stays);
  EXPECT_EQ(decay("layers.0.attention.sinks", {"--model.attention_sinks=true"}), stays);
  EXPECT_EQ(decay("output.bias", {"--model.output_bias=true"}), stays);
}

TEST(ParamSpecs, LetEmbeddingsKeepTheirSize) {
  for (const char* tied : {"--model.tie_embeddings=true", "--model.tie_embeddings=false"}) {
    const Config decayed = model({"--model.position=learned", tied});
    const Config constant = model({"--model.position=learned", "--train.decay_embeddings=false", tied});
    const std::vector<ParamSpec> before = param_specs(decayed, 37), after = param_specs(constant, 37);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const bool embeds = after[i].name == "embedding.weight" || after[i].name == "position.weight";
      EXPECT_EQ(after[i].decays, before[i].decays && !embeds) << after[i].name;
    }
    EXPECT_EQ(count_params(constant, 37).products, count_params(decayed, 37).products);
  }
}

TEST(ParamSpecs, StartWithTheDeviationsOfTheKeys) {
  const auto deviation = [](const std::string& name, const std::vector<std::string>& overrides) {
    for (const ParamSpec& s : param_specs(model(overrides), 37))
      if (s.name == name) return s.init.stddev;
    ADD_FAILURE() << "no " << name;
    return 0.0;
  };
  const std::string residual[] = {"layers.2.attention.out.weight", "layers.1.mlp.down.weight",
                                  "layers.3.moe.experts.down.weight", "layers.3.moe.shared.down.weight"};
  for (const std::string& name : residual) {
    EXPECT_EQ(deviation(name, {}), 0.02 / std::sqrt(24.0)) << name;
    EXPECT_EQ(deviation(name, {"--model.init_std=0.008"}), 0.008 / std::sqrt(24.0)) << name;
    EXPECT_EQ(deviation(name, {"--model.init_std=0.008", "--model.init_residual_scale=0.5"}), 0.004) << name;
  }
  for (const char* name : {"embedding.weight", "output.weight", "layers.3.moe.router.weight",
                           "layers.3.moe.experts.up.weight", "layers.0.attention.q.weight"}) {
    EXPECT_EQ(deviation(name, {}), 0.02) << name;
    EXPECT_EQ(deviation(name, {"--model.init_std=0.008", "--model.init_residual_scale=0.5"}), 0.008) << name;
  }
}

// Muon updates the weights of GEMMs in layers, but for routers and gates. Experts, and the two
// projections of a gated FFN, are matrices of their own. So is each head of queries, keys and
// values.
TEST(ParamSpecs, AssignMatricesToMuon) {
  std::map<std::string, std::string> matrices;
  for (const ParamSpec& s : param_specs(model({"--train.optimizer=muon"}), 37)) {
    const bool by_muon = update_rule(s.optimizer).name == "muon";
    if (by_muon) matrices[s.name] = fmt::format("{} {} {}", s.shape.str(), s.matrix->stack_dims, s.matrix->row_dims);
    const bool is_other =
        !s.layer || !s.decays || s.name.find("router") != std::string::npos || s.name.ends_with("shared_gate.weight");
    EXPECT_EQ(by_muon, !is_other) << s.name;
    EXPECT_EQ(s.optimizer == Optimizer::adamw, is_other) << s.name;
  }
  EXPECT_EQ(matrices["layers.0.attention.q.weight"], "[6, 4, 24] 1 1");
  EXPECT_EQ(matrices["layers.0.attention.out.weight"], "[24, 6, 4] 0 1");
  EXPECT_EQ(matrices["layers.1.mlp.up.weight"], "[2, 30, 24] 1 1");
  EXPECT_EQ(matrices["layers.3.moe.experts.up.weight"], "[6, 2, 12, 24] 2 1");
  EXPECT_EQ(matrices["layers.3.moe.experts.down.weight"], "[6, 24, 12] 1 1");
  for (const ParamSpec& s : param_specs(model({"--train.optimizer=sgd"}), 37))
    EXPECT_EQ(update_rule(s.optimizer).name, "sgd") << s.name;
}

// All layers share the table of T5, unless each has its own. Every layer has its own sinks.
TEST(ParamSpecs, DescribeRelativeBiasesAndSinks) {
  const auto names = [](const std::vector<std::string>& overrides) {
    std::map<std::string, ParamSpec> found;
    for (const ParamSpec& s : param_specs(model(overrides), 37))
      if (s.name.ends_with("relative_bias.weight") || s.name.ends_with("sinks")) found[s.name] = s;
    return found;
  };
  EXPECT_TRUE(names({}).empty());
  EXPECT_TRUE(names({"--model.position=alibi"}).empty());
  const auto shared = names({"--model.position=t5", "--model.t5_buckets=9"});
  ASSERT_EQ(shared.size(), 1u);
  const ParamSpec& table = shared.at("relative_bias.weight");
  EXPECT_EQ(table.shape, (Shape{6, 9}));
  EXPECT_EQ(table.summed(), Axes(Axis::dp));
  EXPECT_FALSE(table.layer);
  const auto own = names({"--model.position=t5", "--model.t5_shared=false", "--model.attention_sinks=true"});
  EXPECT_EQ(own.size(), 24u);
  EXPECT_EQ(own.at("layers.3.attention.relative_bias.weight").layer, 3);
  EXPECT_EQ(own.at("layers.3.attention.sinks").shape, (Shape{6}));
  EXPECT_EQ(own.at("layers.3.attention.sinks").summed(), Axes(Axis::dp));
}

// Projections to a latent are replicated on every rank. Projections from it to heads are split.
TEST(ParamSpecs, DescribeLatentAttention) {
  const Config config = parse_config(
      "[model]\nlayers=1\nd_model=24\nheads=6\nkv_latent=10\nq_latent=7\nrope_head_dim=2\nvalue_head_dim=5\n", "test");
  std::string found;
  for (const ParamSpec& s : param_specs(config, 37))
    if (s.name.starts_with("layers.0.attention."))
      found += fmt::format("{} {} {}{}; ", s.name.substr(19), s.shape.str(), s.summed().str(),
                           s.fused_with_previous ? " joined" : "");
  EXPECT_EQ(found,
            "q_down.weight [7, 24] dp x tp; q_latent_norm.weight [7] dp x tp; q.weight [6, 6, 7] dp; "
            "kv_down.weight [10, 24] dp x tp; kv_latent_norm.weight [10] dp x tp; k_rope.weight [2, 24] dp x tp; "
            "k.weight [6, 4, 10] dp; v.weight [6, 5, 10] dp; out.weight [24, 6, 5] dp; ");
}

// The layer in a name is only for people. It equals the layer of the spec.
TEST(ParamSpecs, ShowTheLayerInNames) {
  for (const ParamSpec& s : param_specs(model(), 37)) {
    const std::string prefix = s.layer ? fmt::format("layers.{}.", *s.layer) : "";
    EXPECT_TRUE(s.name.starts_with(prefix)) << s.name << ": " << prefix;
    EXPECT_EQ(s.name.starts_with("layers."), s.layer.has_value()) << s.name;
  }
}

// A parameter that is tied, or shared by layers, is in the first bucket that reads it.
TEST(ParamSpecs, HaveBucketsInForwardOrder) {
  const Config config = model({"--model.tie_embeddings=false", "--model.position=t5"});
  const Index layers = config.model.layers;
  Index last = embedding_bucket;
  std::map<std::string, Index> buckets;
  const std::vector<ParamSpec> specs = param_specs(config, 37);
  for (const ParamSpec& s : specs) {
    EXPECT_GE(s.bucket, last) << s.name;
    if (s.layer) {
      EXPECT_EQ(s.bucket, bucket_of_layer(*s.layer)) << s.name;
    }
    last = buckets[s.name] = s.bucket;
  }
  EXPECT_EQ(buckets.at("embedding.weight"), embedding_bucket);
  EXPECT_EQ(buckets.at("relative_bias.weight"), embedding_bucket);
  EXPECT_EQ(buckets.at("final_norm.weight"), bucket_of_layer(layers));
  EXPECT_EQ(buckets.at("output.weight"), bucket_of_layer(layers));
  for (const GroupLayout& group : flat_layout(specs, {12, 3, 3, 2}, coord_of({12, 3, 3, 2}, 7)).groups) {
    ASSERT_EQ(std::ssize(group.buckets), bucket_of_layer(layers) + 1);
    Index end = 0;
    for (const Range& bucket : group.buckets) {
      EXPECT_EQ(bucket.begin, end);
      end = bucket.end;
    }
    EXPECT_EQ(end, group.elements);
    for (const ParamSlice& p : group.slices) {
      const Range& bucket = group.buckets[static_cast<std::size_t>(p.spec->bucket)];
      EXPECT_TRUE(bucket.begin <= p.range().begin && p.range().end <= bucket.end) << p.spec->name;
    }
    end = 0;
    std::vector<float> buffer(static_cast<std::size_t>(group.elements));
    for (const auto& [x, owner] : group.by_owner(view_of(buffer.data(), {group.elements}), {1, group.elements})) {
      const Index begin = (x.bytes() - reinterpret_cast<const std::byte*>(buffer.data())) / 4;
      EXPECT_EQ(begin, std::max<Index>(1, end));
      EXPECT_EQ(owner, begin * group.shards / group.elements);
      end = begin + x.elements();
    }
    EXPECT_EQ(end, group.elements);
  }
}

TEST(FlatLayout, HasABufferPerSetOfAxes) {
  const auto sets = [](const Config& config, const Layout& layout, int rank) {
    std::string text;
    const std::vector<ParamSpec> specs = param_specs(config, 37);
    const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, rank));
    for (std::size_t g = 0; g < flat.groups.size(); ++g) {
      const GroupLayout& group = flat.groups[g];
      text += fmt::format("{}: {} of {}; ", group.axes.str(), group.shard, group.shards);
      for (const ParamSlice& p : group.slices) {
        EXPECT_EQ(p.group, g) << p.spec->name;
        EXPECT_EQ(p.spec->summed(), group.axes) << p.spec->name;
      }
    }
    return text;
  };
  // Rank 7 of 12: dp 2, tp 1; edp 1, ep 0, etp 1, and so on. If tp is 1, two groups have the same
  // ranks, but each has a buffer.
  EXPECT_EQ(sets(model(), {12, 3, 3, 2}, 7), "dp x tp: 7 of 12; dp: 2 of 4; edp: 1 of 2; ");
  EXPECT_EQ(sets(model(), {12, 1, 6, 1}, 7), "dp x tp: 7 of 12; dp: 7 of 12; edp: 1 of 2; ");
  EXPECT_EQ(sets(model(), {12, 3, 1, 1}, 7), "dp x tp: 7 of 12; dp: 2 of 4; edp: 7 of 12; ");
  EXPECT_EQ(sets(model(), {12, 3, 3, 4}, 7), "dp x tp: 7 of 12; dp: 2 of 4; edp: 0 of 1; ");
  EXPECT_EQ(sets(model({"--moe.experts=0"}), {12, 3, 1, 1}, 7), "dp x tp: 7 of 12; dp: 2 of 4; ");
}

}  // namespace
}  // namespace sy
