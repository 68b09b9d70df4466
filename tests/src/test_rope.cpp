// Rotary tables are compared with those of Hugging Face transformers (tests/golden/rope_tables.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "src/evaluate/logits.h"
#include "src/families/import.h"
#include "src/generate/generate.h"
#include "src/model/embedding.h"
#include "src/model/rope.h"
#include "src/text/json.h"
#include "tests/src/golden_model.h"
#include "tests/src/temp_folder.h"

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
  return *block_specs(parse_config("", "test", settings)).front().attention().rope;
}

// Positions within the original length and beyond it.
TEST(Rope, TablesOfEveryScalingEqualTransformers) {
  const Json cases = golden("rope_tables.json");
  ASSERT_GE(cases.size(), 13u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const RopeSpec rope = rope_of(c["settings"].get<std::vector<std::string>>());
    const auto frequencies = c["frequencies"].get<std::vector<double>>();
    const std::vector<double> got = rope_frequencies(rope, rope.length);
    ASSERT_EQ(got.size(), frequencies.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], frequencies[i], 1e-6 * frequencies[i]) << i;

    const auto positions = c["positions"].get<std::vector<std::int64_t>>();
    const std::vector<float> table = rope_table(rope, rope.length, positions.back() + 1);
    for (std::size_t p = 0; p < positions.size(); ++p) {
      const auto cosines = c["cos"][p].get<std::vector<double>>(), sines = c["sin"][p].get<std::vector<double>>();
      for (std::size_t i = 0; i < got.size(); ++i) {
        // In transformers an angle is a product in f32.
        const double angle = static_cast<double>(positions[p]) * frequencies[i], bound = 1e-6 + 4e-7 * angle;
        const std::size_t at = 2 * (static_cast<std::size_t>(positions[p]) * got.size() + i);
        EXPECT_NEAR(table[at], cosines[i], bound) << "position " << positions[p] << ", pair " << i;
        EXPECT_NEAR(table[at + 1], sines[i], bound) << "position " << positions[p] << ", pair " << i;
      }
    }
  }
}

// Scalings as the papers describe them, beyond the trained length. A pair with less than a rotation
// over the original length stays within that angle over factor times the length. A pair with many
// rotations keeps its frequency.
TEST(Rope, ScalingsKeepLowFrequenciesInTheTrainedRange) {
  const std::vector<std::string> base = {"--model.head_dim=64", "--model.rope_factor=16",
                                         "--model.rope_original_length=1024", "--model.seq_len=16384"};
  const auto frequencies = [&](const std::string& scaling) {
    auto settings = base;
    settings.push_back("--model.rope_scaling=" + scaling);
    return rope_frequencies(rope_of(settings), 16384);
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

TEST(Rope, AttentionFactorAppliesToYarnAndLongrope) {
  const std::vector<std::string> base = {"--model.head_dim=4", "--model.rope_factor=4",
                                         "--model.rope_original_length=16", "--model.seq_len=64",
                                         "--model.rope_long_factors=1,2"};
  const auto factor = [&](const std::string& scaling, const std::string& value = "0") {
    auto settings = base;
    settings.insert(settings.end(), {"--model.rope_scaling=" + scaling, "--model.rope_attention_factor=" + value});
    return rope_of(settings).attention_factor;
  };
  EXPECT_EQ(factor("linear"), 1);
  EXPECT_DOUBLE_EQ(factor("yarn"), 0.1 * std::log(4.0) + 1);
  EXPECT_DOUBLE_EQ(factor("longrope"), std::sqrt(1.5));  // ln 4 is half of ln 16
  EXPECT_EQ(factor("yarn", "1.25"), 1.25);
}

// ---- tables that depend on the length in use (tests/golden/rope_lengths.py) ----

std::vector<std::int32_t> ids_of(const Json& list) {
  std::vector<std::int32_t> ids;
  for (const Json& id : list) ids.push_back(static_cast<std::int32_t>(id.get<std::int64_t>()));
  return ids;
}

void expect_logits(std::span<const float> got, const std::vector<double>& want, const std::string& where) {
  ASSERT_EQ(got.size(), want.size()) << where;
  double largest = 0;
  for (const double x : want) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 1e-4 * largest) << where << ", token " << i;
}

// An imported model whose tables also serve texts beyond model.seq_len.
struct Imported {
  explicit Imported(const Json& theirs) : self(make_comm_self()) {
    const TempFolder temp;
    write_model(temp.path() / "model", theirs);
    const FamilyModel model = open_family_model(temp.path() / "model", {});
    FamilyValues values(temp.path() / "model", model);
    engine.emplace(model.config, model.vocab, make_cpu(), make_mesh(*self, Layout{}), false, ArenaSizes{}, 1, 64);
    engine->store().fill(values);
  }
  std::unique_ptr<Comm> self;
  std::optional<Engine> engine;
};

class RopeLengths : public testing::TestWithParam<const char*> {
 protected:
  RopeLengths() {
    for (const Json& c : golden("rope_lengths.json"))
      if (c["name"] == Json(GetParam())) golden_ = c;
    imported_.emplace(golden_);
  }
  Engine& engine() { return *imported_->engine; }

  Json golden_;
  std::optional<Imported> imported_;
};

// Texts are shorter and longer than the original length. They are computed in this order and back,
// since an engine keeps a table until a length needs another one.
TEST_P(RopeLengths, LogitsAndLossesEqualTransformers) {
  std::vector<Json> texts;
  for (const Json& text : golden_["texts"]) texts.push_back(text);
  ASSERT_EQ(texts.size(), 4u);
  for (std::size_t i = 0; i + 1 < 4; ++i) texts.push_back(texts[2 - i]);
  for (const Json& text : texts) {
    const std::vector<std::int32_t> ids = ids_of(text["ids"]);
    const std::string where = fmt::format("{} tokens", ids.size());
    const auto want = text["logits"].get<std::vector<double>>();
    const std::vector<float> logits = sequence_logits(engine(), ids, [](Index, Index) {});
    expect_logits(std::span(logits).last(want.size()), want, where);

    double sum = 0;
    for (const double z : want) sum += std::exp(z);
    std::vector<std::int32_t> targets(ids.size(), -1);
    targets.back() = 3;
    engine().evaluate({1, std::ssize(ids), ids, targets}, true);
    EXPECT_NEAR(engine().take_statistics().loss_sum, std::log(sum) - want[3], 1e-4 * (1 + std::abs(want[3]))) << where;
  }
}

// The text is computed beside others: one is longer from the start, and one stays short.
TEST_P(RopeLengths, GenerationBeyondTheOriginalLengthEqualsTransformers) {
  const std::vector<std::int32_t> prompt = ids_of(golden_["prompt"]), want = ids_of(golden_["added"]);
  GenerateOptions options{.sampling = {.temperature = 0}, .tokens = std::ssize(want), .prefill = 5};
  const std::vector<std::vector<std::int32_t>> prompts = {
      ids_of(golden_["texts"][3]["ids"]), prompt, {3, 1, 4}, prompt};
  const std::vector<Continuation> together = generate(engine(), prompts, options);
  EXPECT_EQ(together[1].added, want);
  EXPECT_EQ(together[3].added, want);
  EXPECT_EQ(generate(engine(), std::span(prompts).first(1), options)[0].added, together[0].added);
  EXPECT_EQ(generate(engine(), std::span(prompts).subspan(2, 1), options)[0].added, together[2].added);
}

// Logits of every step, as generate() computes them.
TEST_P(RopeLengths, LogitsOfEachGenerationStepEqualTransformers) {
  std::vector<std::int32_t> ids = ids_of(golden_["prompt"]);
  Cache cache = engine().make_cache(1, 40, 40);
  std::vector<float> logits = engine().decode(cache, 0, 1, ids, true);
  for (std::size_t step = 0; step < golden_["added"].size(); ++step) {
    expect_logits(logits, golden_["added_logits"][step].get<std::vector<double>>(), fmt::format("step {}", step));
    ids.push_back(ids_of(golden_["added"])[step]);
    const bool restarts = engine().requires_recompute(std::ssize(ids));
    EXPECT_EQ(restarts, std::string(GetParam()) == "longrope" && ids.size() == 17) << ids.size();
    if (restarts) cache.reset(0);
    logits = engine().decode(cache, 0, 1, restarts ? std::span(ids) : std::span(ids).last(1), true);
  }
}

INSTANTIATE_TEST_SUITE_P(Scalings, RopeLengths, testing::Values("longrope", "dynamic"),
                         [](const testing::TestParamInfo<const char*>& c) { return std::string(c.param); });

// A single list of factors serves all lengths. The other scalings do not depend on the length.
TEST(Rope, OneListOfFactorsServesAllLengths) {
  const std::vector<std::string> base = {"--model.head_dim=4", "--model.rope_factor=4",
                                         "--model.rope_original_length=16", "--model.seq_len=64",
                                         "--model.rope_long_factors=1,2"};
  for (const char* scaling : {"longrope", "ntk", "yarn", "llama3", "linear", "none"}) {
    auto settings = base;
    settings.push_back(std::string("--model.rope_scaling=") + scaling);
    const RopeSpec rope = rope_of(settings);
    EXPECT_EQ(rope_frequencies(rope, 8), rope_frequencies(rope, 64)) << scaling;
    EXPECT_EQ(scaled_length(rope, 8), scaled_length(rope, 64)) << scaling;
  }
  auto both = base;
  both.insert(both.end(), {"--model.rope_scaling=longrope", "--model.rope_short_factors=3,4"});
  const RopeSpec rope = rope_of(both);
  EXPECT_EQ(rope_frequencies(rope, 16), rope_frequencies(rope, 1));
  EXPECT_EQ(rope_frequencies(rope, 17), rope_frequencies(rope, 64));
  EXPECT_EQ(rope_frequencies(rope, 16)[0], 1 / 3.0);
  EXPECT_EQ(rope_frequencies(rope, 17)[0], 1.0);
}

// Vaswani et al., 2017, section 3.5, computed by hand.
TEST(SinusoidalPositions, AlternateSineAndCosine) {
  const std::vector<float> table = sinusoidal_positions(4, 5);
  ASSERT_EQ(table.size(), 20u);
  const double want[] = {std::sin(3.0), std::cos(3.0), std::sin(3 / std::pow(10000.0, 0.4)),
                         std::cos(3 / std::pow(10000.0, 0.4)), std::sin(3 / std::pow(10000.0, 0.8))};
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(table[15 + i], want[i], 1e-7) << i;
}

}  // namespace
}  // namespace sy
