// Small models of several families, compared with Hugging Face transformers
// (tests/golden/blocks.py, tests/golden/latent.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "src/model/engine.h"
#include "src/text/json.h"
#include "tests/src/golden_gradient.h"

namespace sy {
namespace {

Json golden(const std::string& file) {
  std::ifstream in(std::string(GOLDEN) + "/" + file);
  std::stringstream text;
  text << in.rdbuf();
  return Json::parse(text.str());
}

std::vector<std::int32_t> tokens_of(const Json& list) {
  std::vector<std::int32_t> ids;
  for (const Json& id : list) ids.push_back(static_cast<std::int32_t>(id.get<std::int64_t>()));
  return ids;
}

void expect_logits(Engine& engine, const std::vector<std::int32_t>& ids, Index at_once,
                   const std::vector<double>& want) {
  const Index tokens = std::ssize(ids);
  Cache cache = engine.make_cache(1, tokens, at_once);
  std::vector<float> logits;
  for (Index begin = 0; begin < tokens; begin += at_once)
    logits = engine.decode(cache, 0, 1, std::span(ids).subspan(begin, std::min(at_once, tokens - begin)), true);
  ASSERT_EQ(logits.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(logits[i], want[i], 2e-5 * (1 + std::abs(want[i]))) << i;
}

TEST(Families, LogitsEqualTransformers) {
  const Json cases = golden("blocks.json");
  ASSERT_GE(cases.size(), 19u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const Config config = parse_config(
        "[model]\nlayers = 2\nd_model = 16\nheads = 4\nkv_heads = 2\nhead_dim = 4\nd_ff = 20\nseq_len = 64\n", "test",
        c["settings"].get<std::vector<std::string>>());
    const auto self = make_comm_self();
    const Index V = c["vocab"].get<std::int64_t>();
    Engine engine(config, V, make_cpu(), make_mesh(*self, Layout{}), true);
    set_golden_values(engine.store());
    const std::vector<std::int32_t> ids = tokens_of(c["ids"]);
    expect_logits(engine, ids, std::ssize(ids), c["logits"].get<std::vector<double>>());
  }
}

// DeepSeek-V2 and V3: the loss and every gradient of training, and the logits of generation, which
// computes them in another way.
TEST(Families, LatentAttentionEqualsTransformers) {
  const Json cases = golden("latent.json");
  ASSERT_EQ(cases.size(), 3u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const Config config = parse_config(
        "[model]\nlayers = 3\nd_model = 16\nheads = 4\nd_ff = 20\nseq_len = 32\n[moe]\nexperts = 6\ntop_k = 2\n"
        "first_dense = 1\nd_ff = 9\nshared_experts = 1\ncapacity_factor = 0\naux_loss = 0\nz_loss = 0\n",
        "test", c["settings"].get<std::vector<std::string>>());
    const auto self = make_comm_self();
    const Index V = c["vocab"].get<std::int64_t>();
    Engine engine(config, V, make_cpu(), make_mesh(*self, Layout{}), true);
    set_golden_values(engine.store());
    const std::vector<std::int32_t> ids = tokens_of(c["ids"]), targets = tokens_of(c["targets"]);
    for (const Index at_once : {Index{1}, Index{4}, std::ssize(ids)})
      expect_logits(engine, ids, at_once, c["logits"].get<std::vector<double>>());
    engine.take_statistics();
    const Index T = std::ssize(ids);
    engine.forward_backward({1, T, ids, targets, T, 1, 1});
    const double loss = c["loss"].get<double>();
    EXPECT_NEAR(engine.take_statistics().loss_sum / static_cast<double>(T), loss, 1e-5 * loss);
    for (const ParamSpec& spec : engine.store().specs()) {
      const auto want = c["gradients"][spec.name].get<std::vector<double>>();
      const View grad = engine.store().get(spec.name).grad;
      expect_golden_gradient(spec.name, {grad.f32(), static_cast<std::size_t>(grad.elements())}, want,
                             is_around_one(spec), {.relative = 2e-5});
    }
  }
}

}  // namespace
}  // namespace sy
