// Small models of several families against Hugging Face transformers (tests/golden/blocks.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "src/model/engine.h"
#include "src/text/json.h"

namespace sy {
namespace {

// Element i of the parameter, as in blocks.py.
float value(const ParamSpec& spec, std::uint32_t i) {
  std::uint32_t h = 0;
  for (const char c : spec.name) h = (h * 31 + static_cast<unsigned char>(c)) % 65521;
  std::uint32_t x = (i + 1) * 2654435761u + h * 40503u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return static_cast<float>(x / 4294967296.0 - 0.5 + (spec.init.kind == InitKind::ones ? 1 : 0));
}

TEST(Families, LogitsAreThoseOfTransformers) {
  std::ifstream in(std::string(GOLDEN) + "/blocks.json");
  std::stringstream text;
  text << in.rdbuf();
  const Json cases = Json::parse(text.str());
  ASSERT_GE(cases.size(), 19u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const Config config = parse_config(
        "[model]\nlayers = 2\nd_model = 16\nheads = 4\nkv_heads = 2\nhead_dim = 4\nd_ff = 20\nseq_len = 64\n", "test",
        c["settings"].get<std::vector<std::string>>());
    const auto self = make_comm_self();
    const Index V = c["vocab"].get<std::int64_t>();
    Engine engine(config, V, make_cpu(), make_mesh(*self, Layout{}), true);
    for (const ParamSpec& spec : engine.store().specs()) {
      const View w = engine.store().get(spec.name).weight;
      for (Index i = 0; i < w.elements(); ++i) w.f32()[i] = value(spec, static_cast<std::uint32_t>(i));
    }
    std::vector<std::int32_t> ids;
    for (const Json& id : c["ids"]) ids.push_back(static_cast<std::int32_t>(id.get<std::int64_t>()));
    const Index tokens = std::ssize(ids);
    Cache cache = engine.make_cache(1, tokens, tokens);
    const std::vector<float> logits = engine.extend(cache, 0, 1, ids, true);
    const auto want = c["logits"].get<std::vector<double>>();
    ASSERT_EQ(logits.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(logits[i], want[i], 2e-5 * (1 + std::abs(want[i]))) << i;
  }
}

}  // namespace
}  // namespace sy
