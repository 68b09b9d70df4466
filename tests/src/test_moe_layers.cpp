// MoE layers of known families against Hugging Face transformers, forward and backward (tests/golden/moe_layers.py).
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "src/model/engine.h"
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

TEST_P(MoeLayer, IsThatOfTransformers) {
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
  Backend& b = engine.backend();
  const std::string prefix = "layers.0.moe.";
  const auto put = [&](const Json& values, View x) {
    const auto numbers = values.get<std::vector<double>>();
    ASSERT_EQ(static_cast<Index>(numbers.size()), x.elements());
    for (std::size_t i = 0; i < numbers.size(); ++i) x.f32()[i] = static_cast<float>(numbers[i]);
  };
  // Theirs are all that ours are.
  Index given = 0, ours = 0;
  for (const ParamSpec& spec : engine.store().specs()) ours += spec.name.starts_with(prefix);
  for (const auto& [name, values] : c["values"].members()) {
    put(values, engine.store().get(prefix + name).weight);
    ++given;
  }
  EXPECT_EQ(given, ours);
  const Tensor x = b.tensor({T, D}), dy = b.tensor({T, D}), y = b.tensor({T, D}), dx = b.tensor({T, D});
  put(c["x"], x);
  put(c["dy"], dy);
  const bool biased = !c["selection_bias"].empty();
  const Tensor bias = b.tensor({config.moe.experts});
  if (biased) put(c["selection_bias"], bias);

  const Moe moe(*block_specs(config).front().moe(), D, engine.store(), prefix,
                {.bias = biased ? bias.view() : View{}, .order = {}});
  engine.store().prepared().refresh();
  Arena saved([&](Index bytes) { return b.allocate(bytes); });
  const Device device{b, engine.mesh(), engine.scratch(), DType::f32};
  const Batch batch{.sequences = 1, .seq_len = T, .ids = {}, .targets = {}, .positions = {}, .step = {{}, 1, 1}};
  const Pass pass{device, batch, saved};
  Moe::Saved state;
  moe.forward(pass, x, {.y = y, .add = false}, state, {});
  expect_near("y", y, c["y"].get<std::vector<double>>());
  moe.backward(pass, dy, state, dx);
  expect_near("dx", dx, c["dx"].get<std::vector<double>>());
  for (const auto& [name, values] : c["gradients"].members())
    expect_near(name, engine.store().get(prefix + name).grad, values.get<std::vector<double>>());
}

INSTANTIATE_TEST_SUITE_P(Of, MoeLayer,
                         testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3",
                                         "gpt_oss"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sy
