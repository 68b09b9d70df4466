// Encoder-decoders, forward and backward, compared with the double-precision reference and its
// finite differences; their generation, compared with a whole forward pass.
#include <gtest/gtest.h>

#include <cmath>

#include "src/evaluate/logits.h"
#include "src/model/engine.h"
#include "src/params/costs.h"
#include "tests/src/gradient_check.h"
#include "tests/src/reference_model.h"

namespace sy::encoder_decoder_test {
namespace {

using reference::Numbers;

// Odd sizes; layers, heads and widths that differ in both stacks.
constexpr const char* base = R"(
[model]
kind = encoder_decoder
layers = 2
d_model = 12
heads = 4
kv_heads = 2
head_dim = 6
d_ff = 10
[encoder]
seq_len = 9
[decoder]
seq_len = 7
[moe]
experts = 5
top_k = 2
d_ff = 9
capacity_factor = 0.8
aux_loss = 0.3
z_loss = 0.05
[train]
objective = seq2seq
)";

constexpr Index V = 11, B = 3;

struct Inputs {
  std::vector<std::int32_t> encoder, ids, targets;
  Index counted = 0;
  // The sequences have 9, 6 and 1 tokens in the encoder, and 7, 7 and 4 in the decoder.
  explicit Inputs(const Config& config) {
    const RandomStream draw(3, "tokens");
    const Index Se = config.encoder_length(), S = config.decoder_length();
    for (Index i = 0; i < B * Se; ++i)
      encoder.push_back(i % Se < (i / Se == 0   ? Se
                                  : i / Se == 1 ? Se - 3
                                                : 1)
                            ? static_cast<std::int32_t>(draw.bits(i) % V)
                            : -1);
    for (Index i = 0; i < B * S; ++i) {
      const bool padding = i / S == 2 && i % S >= 4;
      ids.push_back(padding ? -1 : static_cast<std::int32_t>(draw.bits(1000 + i) % V));
      targets.push_back(padding || i == 4 ? -1 : static_cast<std::int32_t>(draw.bits(2000 + i) % V));
      counted += targets.back() >= 0;
    }
  }
  Engine::MicroBatch batch(const Config& config) const {
    return {.sequences = B,
            .seq_len = config.decoder_length(),
            .ids = ids,
            .targets = targets,
            .step_targets = counted,
            .step_sequences = B,
            .encoder_length = config.encoder_length(),
            .encoder_ids = encoder};
  }
};

// Sets all weights to larger values than initial ones, so that every path matters.
reference::Parameters set_weights(Engine& engine) {
  reference::Parameters parameters;
  for (const ParamSpec& spec : engine.store().specs()) {
    const View w = engine.store().get(spec.name).weight;
    const RandomStream random(11, spec.name);
    Numbers values(w.elements());
    for (Index i = 0; i < w.elements(); ++i) {
      w.f32()[i] = static_cast<float>((spec.init.kind == InitKind::ones ? 1.0 : 0.0) + 0.3 * random.normal(i));
      values[i] = w.f32()[i];
    }
    parameters[spec.name] = values;
  }
  return parameters;
}

struct Case {
  const char* name;
  std::vector<std::string> overrides;
};

class EncoderDecoder : public testing::TestWithParam<Case> {};

TEST_P(EncoderDecoder, LossAndGradientsMatchReference) {
  const Config config = parse_config(base, "test", GetParam().overrides);
  const auto self = make_comm_self();
  Engine engine(config, V, make_cpu(), make_mesh(*self, Layout{}), true);
  reference::Parameters parameters = set_weights(engine);
  const Inputs inputs(config);
  engine.forward_backward(inputs.batch(config));
  const Statistics found = engine.take_statistics();

  reference::Model model(config, V, B, {inputs.ids.begin(), inputs.ids.end()},
                         {inputs.targets.begin(), inputs.targets.end()});
  model.set_encoder_ids({inputs.encoder.begin(), inputs.encoder.end()});
  const reference::ModelLoss expected = model.loss(parameters, false);
  EXPECT_NEAR(found.loss_sum / static_cast<double>(inputs.counted), expected.cross_entropy,
              2e-6 * expected.cross_entropy);
  double aux = 0, z = 0;
  ASSERT_EQ(found.layers.size(), model.decisions().size());
  for (std::size_t layer = 0; layer < found.layers.size(); ++layer) {
    const RouterStats& s = found.layers[layer];
    const reference::Decision& d = model.decisions()[layer];
    aux += s.aux_loss;
    z += s.z_loss;
    std::vector<Index> routed(config.moe.experts), dropped(config.moe.experts);
    for (std::size_t a = 0; a < d.experts.size(); ++a) {
      if (d.experts[a] < 0) continue;
      ++routed[reference::whole(d.experts[a])];
      dropped[reference::whole(d.experts[a])] += d.dispatch_mask[a] == 0;
    }
    EXPECT_EQ(s.routed, routed) << layer;
    EXPECT_EQ(s.dropped, dropped) << layer;
  }
  EXPECT_NEAR(aux, expected.aux, 1e-5 * (1e-9 + expected.aux));
  EXPECT_NEAR(z, expected.router_z, 1e-5 * (1e-9 + expected.router_z));

  for (const ParamSpec& spec : engine.store().specs()) {
    const View grad = engine.store().get(spec.name).grad;
    Numbers& w = parameters[spec.name];
    const RandomStream random(5, spec.name);
    const Index n = grad.elements();
    const auto check = [&](const Numbers& direction, const std::string& what) {
      // The gradient of a bias of keys is 0, and rounding alone is left of it.
      expect_derivative(
          grad, w, direction, [&] { return model.loss(parameters, true).total(); }, 5e-3, spec.name + ", " + what);
    };
    Numbers direction(n);
    for (Index i = 0; i < n; ++i) direction[i] = random.normal(i);
    check(direction, "random direction");
    direction.assign(n, 0.0);
    direction[n - 1] = 1;
    check(direction, "last element");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configs, EncoderDecoder,
    testing::Values(Case{"rope", {}},
                    Case{"t5",
                         {"--model.position=t5", "--model.t5_buckets=6", "--model.t5_max_distance=12",
                          "--model.attention_scale=1", "--model.tie_embeddings=true", "--model.logit_scale=0.3",
                          "--model.ffn=relu", "--moe.every=2", "--moe.first_dense=1", "--moe.top_k=1"}},
                    Case{"t5_own_biases_gated",
                         {"--model.position=t5", "--model.t5_shared=false", "--model.t5_buckets=8",
                          "--model.ffn=geglu_tanh", "--decoder.experts=0"}},
                    Case{"transformer",
                         {"--model.position=sinusoidal", "--model.norm_position=post", "--model.norm=layernorm",
                          "--model.bias=all", "--model.scale_embedding=true", "--model.tie_embeddings=true",
                          "--encoder.experts=0", "--moe.capacity_factor=0"}},
                    Case{"bart",
                         {"--model.position=learned", "--model.norm_position=post", "--model.norm=layernorm",
                          "--model.bias=all", "--model.embedding_norm=true", "--model.tie_embeddings=true",
                          "--model.output_bias=true", "--moe.experts=0"}},
                    Case{"residual_scale", {"--model.residual_scale=0.6"}},
                    Case{"residual_scale_post_norm", {"--model.residual_scale=1.7", "--model.norm_position=post"}},
                    Case{"stacks_of_their_own",
                         {"--encoder.layers=1", "--decoder.layers=3", "--encoder.heads=2", "--encoder.kv_heads=1",
                          "--encoder.d_ff=7", "--decoder.ffn=relu", "--encoder.position=alibi", "--decoder.window=3",
                          "--decoder.first_dense=2", "--moe.aux_scope=global_batch", "--moe.aux_layers=joint"}},
                    Case{"longformer_both_norms",
                         {"--encoder.attention=longformer", "--encoder.window=2", "--encoder.global_tokens=1",
                          "--model.norm_position=both", "--moe.drop_order=probability", "--train.recompute=norms"}},
                    // Padding after a source of one token has no token within these windows.
                    Case{"window_shorter_than_the_padding",
                         {"--encoder.window=2", "--model.position=t5", "--model.t5_buckets=6"}},
                    Case{"longformer_window_alone",
                         {"--encoder.attention=longformer", "--encoder.window=3", "--encoder.global_tokens=0",
                          "--encoder.position=alibi", "--train.recompute=block"}},
                    Case{"led",
                         {"--encoder.attention=longformer", "--encoder.window=2", "--encoder.global_tokens=2",
                          "--encoder.global_projections=true", "--model.position=learned", "--model.norm_position=post",
                          "--model.norm=layernorm", "--model.bias=all", "--model.embedding_norm=true",
                          "--model.tie_embeddings=true", "--model.output_bias=true", "--moe.experts=0"}},
                    Case{"led_all_tokens_global_recompute_attention",
                         {"--encoder.attention=longformer", "--encoder.window=1", "--encoder.global_tokens=99",
                          "--encoder.global_projections=true", "--model.position=none", "--encoder.kv_heads=1",
                          "--train.recompute=attention"}},
                    Case{"recompute_attention", {"--train.recompute=attention", "--model.qk_norm=head"}},
                    Case{"recompute_block", {"--train.recompute=block", "--moe.choice=sampled", "--moe.experts=0"}}),
    [](const auto& test) { return test.param.name; });

// A decoder that reads one token at a time from its caches gives the logits of the whole sequence.
TEST(EncoderDecoderGeneration, CachesGiveTheLogitsOfWholeSequences) {
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{"--model.position=t5", "--model.t5_buckets=6", "--model.t5_max_distance=12"},
        {"--model.position=sinusoidal", "--model.norm_position=post", "--moe.experts=0"},
        {"--decoder.window=3", "--moe.capacity_factor=0.5"}}) {
    const Config config = parse_config(base, "test", overrides);
    const auto self = make_comm_self();
    Engine engine(config, V, make_cpu(), make_mesh(*self, Layout{}), false);
    set_weights(engine);
    // Sources of 5 and 9 tokens, which share a batch later.
    const std::vector<std::vector<std::int32_t>> sources{{1, 2, 3, 4, 5}, {7, 8, 9, 10, 0, 1, 2, 3, 3}};
    const std::vector<std::vector<std::int32_t>> texts{{0, 4, 6, 2}, {0, 9, 9, 1}};
    Cache cache = engine.make_cache(2, 4, 2, 9);
    std::vector<std::vector<float>> got(2);
    for (Index i = 0; i < 2; ++i) {
      const std::span<const std::int32_t> text = texts[static_cast<std::size_t>(i)];
      got[i] = engine.decode(cache, i, 1, text.first(1), true, 0, sources[i]);
    }
    for (std::size_t p = 1; p < 4; ++p) {
      const std::vector<float> both = engine.decode(cache, 0, 2, std::vector{texts[0][p], texts[1][p]}, true);
      for (std::size_t i = 0; i < 2; ++i) got[i].insert(got[i].end(), both.begin() + i * V, both.begin() + (i + 1) * V);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<std::int32_t> source = sources[i];
      source.resize(9, -1);
      const std::vector<float> want = engine.logits(
          {.sequences = 1, .seq_len = 4, .ids = texts[i], .targets = {}, .encoder_length = 9, .encoder_ids = source});
      ASSERT_EQ(want.size(), got[i].size());
      for (std::size_t j = 0; j < want.size(); ++j) EXPECT_NEAR(got[i][j], want[j], 2e-5) << i << " " << j;
    }
    // Beams: both slots get the sequence of slot 1.
    Arena scratch([&](Index bytes) { return engine.device().allocate(bytes); }, 0);
    cache.reorder({1, 1}, scratch);
    EXPECT_EQ(cache.length(0), 4);
  }
}

// Parameters of T5 v1.0 small, as published: 60.5 million.
TEST(EncoderDecoderSizes, CountsParametersAndFlops) {
  const Config config = parse_config(
      base, "test",
      {"--model.layers=6", "--model.d_model=512", "--model.heads=8", "--model.kv_heads=8", "--model.head_dim=64",
       "--model.d_ff=2048", "--model.ffn=relu", "--model.position=t5", "--model.tie_embeddings=true", "--moe.experts=0",
       "--encoder.seq_len=512", "--decoder.seq_len=114"});
  const ModelCosts costs = model_costs(config, 32128);
  EXPECT_EQ(costs.parameters.total, 60506624);
  // An encoder's layer has 4 D^2 + 2 D F weights, a decoder's 8 D^2 + 2 D F. The encoder's outputs
  // are multiplied by 2 D^2 of these, and the decoder's by the output. A visible key adds 12 D.
  const double D = 512, F = 2048, Se = 512, Sd = 114;
  const double weights =
      Se * 6 * (4 * D * D + 2 * D * F) + Sd * (6 * (6 * D * D + 2 * D * F) + 32128 * D) + Se * 6 * 2 * D * D;
  const double scores = 6 * 12 * D * (Se * Se + Sd * (Sd + 1) / 2 + Sd * Se);
  EXPECT_NEAR(costs.flops_per_token, (6 * weights + scores) / (Se + Sd), 1e-6 * costs.flops_per_token);
}

}  // namespace
}  // namespace sy::encoder_decoder_test
