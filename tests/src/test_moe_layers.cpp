// MoE layers of known families, compared with Hugging Face transformers, forward and backward
// (tests/golden/moe_layers.py).
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "kernels/dry/dry.h"
#include "src/model/engine.h"
#include "src/model/load_balancing.h"
#include "src/model/moe.h"
#include "src/text/json.h"

namespace sy {
namespace {

const Json& golden() {
  static const Json json = [] {
    std::stringstream text;
    text << std::ifstream(GOLDEN "/moe_layers.json").rdbuf();
    return Json::parse(text.str());
  }();
  return json;
}

void expect_near(const std::string& what, ConstView got, const std::vector<double>& want) {
  ASSERT_EQ(got.elements(), static_cast<Index>(want.size())) << what;
  double size = 0;
  for (double w : want) size = std::max(size, std::abs(w));
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got.f32()[i], want[i], 3e-6 * (size + std::abs(want[i]))) << what << ", element " << i;
}

class MoeLayer : public testing::TestWithParam<std::string> {};

TEST_P(MoeLayer, EqualsTransformers) {
  const Json* found = nullptr;
  for (const Json& c : golden()["cases"].elements())
    if (c["name"].get<std::string>() == GetParam()) found = &c;
  ASSERT_TRUE(found);
  const Json& c = *found;
  const Index T = golden()["tokens"].get<Index>();
  auto settings = c["settings"].get<std::vector<std::string>>();
  for (const auto& [key, value] : golden()["sizes"].members())
    settings.push_back(fmt::format("--{}={}", key, value.get<Index>()));
  for (const char* setting : {"layers=1", "heads=1"}) settings.push_back(std::string("--model.") + setting);
  for (const char* setting : {"capacity_factor=0", "aux_loss=0", "z_loss=0"})
    settings.push_back(std::string("--moe.") + setting);
  settings.push_back(fmt::format("--model.seq_len={}", T));
  const Config config = parse_config("", "test", settings);
  const Index D = config.model.d_model;

  const auto self = make_comm_self();
  Engine engine(config, 5, make_cpu(), make_mesh(*self, {}), true);
  Device& b = engine.device();
  const std::string prefix = "layers.0.moe.";
  const auto put = [&](const Json& values, View x) {
    const auto numbers = values.get<std::vector<double>>();
    ASSERT_EQ(static_cast<Index>(numbers.size()), x.elements());
    for (std::size_t i = 0; i < numbers.size(); ++i) x.f32()[i] = static_cast<float>(numbers[i]);
  };
  // The golden case has all our parameters.
  Index stored = 0, ours = 0;
  for (const ParamSpec& spec : engine.store().specs()) ours += spec.name.starts_with(prefix);
  for (const auto& [name, values] : c["values"].members()) {
    put(values, engine.store().get(prefix + name).weight);
    ++stored;
  }
  EXPECT_EQ(stored, ours);
  const Tensor x = b.tensor({T, D}), dy = b.tensor({T, D}), y = b.tensor({T, D}), dx = b.tensor({T, D});
  put(c["x"], x);
  put(c["dy"], dy);
  const bool biased = !c["selection_bias"].empty();
  const Tensor bias = b.tensor({config.moe.experts});
  if (biased) put(c["selection_bias"], bias);

  const MoeSpec spec = *block_specs(config).front().find<MoeSpec>();
  const RopeTables rope(b, {}, T);
  SublayerCounts counts;
  const RouterTables tables{.bias = biased ? bias.view().reshape({1, config.moe.experts}) : View{},
                            .logical_to_physical = {}};
  Moe moe(spec, {engine.store(), rope, tables, counts}, prefix);
  engine.store().packed_weights().refresh();
  Arena saved([&](Index bytes) { return b.allocate(bytes); });
  const ExecutionContext context{b, engine.mesh(), engine.scratch(), DType::f32};
  const Batch batch{
      .streams = {{.sequences = 1, .seq_len = T, .ids = {}, .positions = {}}}, .targets = {}, .step = {{}, 1, 1}};
  LayerContext layer{context, batch, batch.decoder(), saved};
  layer.load_balance = make_load_balance_state(layer, 1, config.moe.experts);
  Moe::Saved state;
  moe.forward(layer, x, {.y = y}, state);
  load_balancing_loss(layer, spec.router, layer.load_balance, {});
  expect_near("y", y, c["y"].get<std::vector<double>>());
  moe.backward(layer, dy, state, dx);
  expect_near("dx", dx, c["dx"].get<std::vector<double>>());
  for (const auto& [name, values] : c["gradients"].members())
    expect_near(name, engine.store().get(prefix + name).grad, values.get<std::vector<double>>());
}

INSTANTIATE_TEST_SUITE_P(Cases, MoeLayer,
                         testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3",
                                         "gpt_oss"),
                         [](const auto& test) { return test.param; });

// Activations that one more layer saves for backward, in numbers of 4 bytes per token, with T
// tokens per rank. ep: ranks that share the experts.
double saved_per_token(Index T, const std::vector<std::string>& settings, int ep = 1) {
  Index peak[2];
  for (Index more : {0, 1}) {
    const Config config = parse_config(
        fmt::format("[model]\nlayers = {}\nd_model = 128\nheads = 2\nseq_len = {}\n", 1 + more, T), "test", settings);
    const auto world = make_comm_dry(ep, 0);
    Engine engine(config, 5, make_dry(), make_dry_mesh(*world, {.ranks = ep, .ep = ep}), true);
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(T));
    engine.forward_backward({1, T, ids, ids, T * ep, ep, 1});
    peak[more] = engine.saved().peak();
  }
  return static_cast<double>(peak[1] - peak[0]) / static_cast<double>(4 * T);
}

// A MoE layer saves the activations of a dense layer of as many active units, and tables. It saves
// no inputs and outputs of experts. Here a token has 8 of 64 experts, each of half the model's
// width.
TEST(ActivationMemory, IsIndependentOfTheNumberOfExperts) {
  constexpr Index T = 1024, D = 128, F = 64, k = 8, E = 64;
  const double dense = saved_per_token(T, {fmt::format("--model.d_ff={}", k * F)}),
               sparse = saved_per_token(T, {fmt::format("--moe.experts={}", E), fmt::format("--moe.top_k={}", k),
                                            fmt::format("--moe.d_ff={}", F), "--moe.capacity_factor=0"});
  // Tables of a token: E logits; expert, weight, token, slot and gate of each choice. There are
  // also tables of experts, and memory is rounded.
  const double tables = E + 5 * k, units = 2 * k * F;
  EXPECT_GE(sparse - dense, tables);
  EXPECT_LE(sparse - dense, tables + 2);
  // With the inputs of the experts and the assignment of each input, the FFN would save this much
  // more.
  EXPECT_LT(units + sparse - dense, 0.55 * (units + sparse - dense + k * (D + 1)));
}

// With several ranks, a rank also saves one row for each received token. A token is sent once to
// each rank that has any of its experts. These are fewer than k rows per local token.
TEST(ActivationMemory, StoresATokenOncePerRank) {
  constexpr Index T = 1024, D = 128, F = 64, k = 8, E = 64;
  const std::vector<std::string> dense = {fmt::format("--model.d_ff={}", k * F)},
                                 sparse = {fmt::format("--moe.experts={}", E), fmt::format("--moe.top_k={}", k),
                                           fmt::format("--moe.d_ff={}", F), "--moe.capacity_factor=0"};
  const double one = saved_per_token(T, sparse) - saved_per_token(T, dense);
  for (const int ep : {2, 4, 8}) {
    // Mean number of ranks per token if all sets of k experts are equally likely: ep ranks, without
    // those that have none of its experts.
    double without = 1;
    for (Index i = 0; i < k; ++i) without *= static_cast<double>(E - E / ep - i) / static_cast<double>(E - i);
    const double received = ep * (1 - without),
                 more = saved_per_token(T, sparse, ep) - saved_per_token(T, dense, ep) - one;
    // Rows with k experts and weights in front of the values; indices of the choices of received
    // tokens; copies of each token, and the token of each copy.
    EXPECT_NEAR(more, received * (D + 2 * k) + (received - 1) * k + 2.0 * std::min<int>(k, ep), 1) << "ep " << ep;
    EXPECT_LT(more, k * D) << "ep " << ep;
  }
}

}  // namespace
}  // namespace sy
