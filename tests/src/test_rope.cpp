// Tables of positions against those of Hugging Face transformers (tests/golden/rope_tables.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "src/model/embedding.h"
#include "src/model/rope.h"
#include "src/text/json.h"

namespace sy {
namespace {

Json golden(const std::string& name) {
  std::ifstream in(std::string(GOLDEN) + "/" + name);
  std::stringstream text;
  text << in.rdbuf();
  return Json::parse(text.str());
}

RopeSpec rope_of(std::vector<std::string> settings) {
  settings.insert(settings.end(), {"--train.global_batch=1", "--train.micro_batch=1"});
  return *block_specs(parse_config("", "test", settings)).front().attention.rope;
}

// Within the original length and beyond it.
TEST(Rope, TablesOfEveryScalingAreThoseOfTransformers) {
  const Json cases = golden("rope_tables.json");
  ASSERT_GE(cases.size(), 13u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const RopeSpec rope = rope_of(c["settings"].get<std::vector<std::string>>());
    const auto frequencies = c["frequencies"].get<std::vector<double>>();
    const std::vector<double> got = rope_frequencies(rope);
    ASSERT_EQ(got.size(), frequencies.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], frequencies[i], 1e-6 * frequencies[i]) << i;

    const auto positions = c["positions"].get<std::vector<std::int64_t>>();
    const std::vector<float> table = rope_table(rope, positions.back() + 1);
    for (std::size_t p = 0; p < positions.size(); ++p) {
      const auto cosines = c["cos"][p].get<std::vector<double>>(), sines = c["sin"][p].get<std::vector<double>>();
      for (std::size_t i = 0; i < got.size(); ++i) {
        // There an angle is a product in f32.
        const double angle = static_cast<double>(positions[p]) * frequencies[i], bound = 1e-6 + 4e-7 * angle;
        const std::size_t at = 2 * (static_cast<std::size_t>(positions[p]) * got.size() + i);
        EXPECT_NEAR(table[at], cosines[i], bound) << "position " << positions[p] << ", pair " << i;
        EXPECT_NEAR(table[at + 1], sines[i], bound) << "position " << positions[p] << ", pair " << i;
      }
    }
  }
}

// What the papers say of positions beyond the trained length: a pair that made less than a turn over the original length does
// not turn further over factor times that, and one of many turns goes on as before.
TEST(Rope, ScalingsKeepLowFrequenciesWithinTheTrainedAngles) {
  const std::vector<std::string> base = {"--model.head_dim=64", "--model.rope_factor=16",
                                         "--model.rope_original_length=1024", "--model.seq_len=16384"};
  const auto frequencies = [&](const std::string& scaling) {
    auto settings = base;
    settings.push_back("--model.rope_scaling=" + scaling);
    return rope_frequencies(rope_of(settings));
  };
  const std::vector<double> plain = frequencies("none");
  for (const char* scaling : {"linear", "ntk", "dynamic", "llama3", "yarn"}) {
    SCOPED_TRACE(scaling);
    const std::vector<double> scaled = frequencies(scaling);
    EXPECT_LE(scaled.back() * 16384, plain.back() * 1024 * (1 + 1e-9));
    EXPECT_NEAR(scaled.front(), std::string(scaling) == "linear" ? 1.0 / 16 : 1.0, 1e-12);
    for (std::size_t i = 1; i < scaled.size(); ++i) EXPECT_LT(scaled[i], scaled[i - 1]);
  }
}

TEST(Rope, AnAttentionFactorIsOfYarnAndLongrope) {
  const std::vector<std::string> base = {"--model.head_dim=4", "--model.rope_factor=4",
                                         "--model.rope_original_length=16", "--model.seq_len=64",
                                         "--model.rope_long_factors=1,2"};
  const auto factor = [&](const std::string& scaling, const std::string& given = "0") {
    auto settings = base;
    settings.insert(settings.end(), {"--model.rope_scaling=" + scaling, "--model.rope_attention_factor=" + given});
    return rope_of(settings).attention_factor;
  };
  EXPECT_EQ(factor("linear"), 1);
  EXPECT_DOUBLE_EQ(factor("yarn"), 0.1 * std::log(4.0) + 1);
  EXPECT_DOUBLE_EQ(factor("longrope"), std::sqrt(1.5));  // ln 4 is half of ln 16
  EXPECT_EQ(factor("yarn", "1.25"), 1.25);
}

// Vaswani et al., 2017, section 3.5, by hand.
TEST(SinusoidalPositions, AlternateSineAndCosine) {
  const std::vector<float> table = sinusoidal_positions(4, 5);
  ASSERT_EQ(table.size(), 20u);
  const double want[] = {std::sin(3.0), std::cos(3.0), std::sin(3 / std::pow(10000.0, 0.4)),
                         std::cos(3 / std::pow(10000.0, 0.4)), std::sin(3 / std::pow(10000.0, 0.8))};
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(table[15 + i], want[i], 1e-7) << i;
}

}  // namespace
}  // namespace sy
