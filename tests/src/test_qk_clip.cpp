// QK-clip in a model. After an update without a learning rate, each head's largest logit over the
// same batch is the threshold, or its earlier value if that was smaller.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "src/model/engine.h"
#include "src/train/distributed_optimizer.h"

namespace sy {
namespace {

// Maximum logits before and after the update.
std::pair<std::vector<float>, std::vector<float>> clipped_logits(const std::vector<std::string>& settings,
                                                                 float threshold) {
  std::vector<std::string> all = {"--train.global_batch=2", "--train.micro_batch=2",
                                  fmt::format("--train.qk_clip={}", threshold)};
  all.insert(all.end(), settings.begin(), settings.end());
  const Config config = parse_config(
      "[model]\nlayers=1\nd_model=24\nheads=6\nkv_heads=2\nhead_dim=8\nseq_len=12\nd_ff=16\n"
      "[train]\nweight_decay=0\n",
      "test", all);
  const std::unique_ptr<Comm> world = make_comm_self();
  Engine engine(config, 29, make_device("cpu"), make_mesh(*world, {1, 1, 1, 1}), true);
  engine.store().initialize(1);
  DistributedOptimizer optimizer(engine.mesh(), engine.store(), engine.max_logits());
  std::vector<std::int32_t> ids(24);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 29);
  const auto logits = [&] {
    engine.forward_backward({2, 12, ids, ids, 24, 2, 1});
    std::vector<float> most(static_cast<std::size_t>(engine.max_logits().elements()));
    engine.device().to_host(engine.max_logits(), most.data());
    return most;
  };
  const std::vector<float> before = logits();
  optimizer.step(config.train, 0, 1);
  return {before, logits()};
}

// The threshold is between the third and the fourth of the six heads' logits.
void expect_clipped(const std::vector<std::string>& settings) {
  const auto [before, unchanged] = clipped_logits(settings, 1e9f);
  EXPECT_EQ(unchanged, before);
  ASSERT_EQ(before.size(), 6u);
  std::vector<float> sorted = before;
  std::ranges::sort(sorted);
  const float threshold = (sorted[2] + sorted[3]) / 2;
  ASSERT_LT(sorted[2], threshold);
  ASSERT_LT(threshold, sorted[3]);
  const std::vector<float> after = clipped_logits(settings, threshold).second;
  for (std::size_t h = 0; h < before.size(); ++h)
    EXPECT_NEAR(after[h], std::min(before[h], threshold), 2e-5 * threshold) << "head " << h << " had " << before[h];
}

TEST(QkClip, LimitsTheLogitsOfEachHead) {
  expect_clipped({});
  expect_clipped({"--run.dtype=f32", "--model.kv_heads=6"});
}

// The rotary elements of keys belong to all heads, and stay.
TEST(QkClip, LimitsTheLogitsOfLatentAttention) {
  expect_clipped({"--model.kv_heads=0", "--model.kv_lora_rank=14", "--model.q_lora_rank=10",
                  "--model.qk_rope_head_dim=4", "--model.v_head_dim=5"});
}

// The heads of multi-token prediction follow those of the decoder.
TEST(QkClip, CoversMultiTokenPrediction) {
  const std::vector<std::string> settings = {"--model.mtp_depth=1"};
  const std::vector<float> before = clipped_logits(settings, 1e9f).first;
  ASSERT_EQ(before.size(), 12u);
  const auto largest = std::max_element(before.begin() + 6, before.end());
  ASSERT_GT(*largest, 0);
  const std::vector<float> after = clipped_logits(settings, *largest / 4).second;
  EXPECT_LT(after[static_cast<std::size_t>(largest - before.begin())], *largest / 2);
}

TEST(QkClip, IsOffByDefault) {
  const Config config = parse_config("", "test", {});
  EXPECT_EQ(config.train.qk_clip, 0);
  EXPECT_THROW(parse_config("", "test", {"--train.qk_clip=100", "--model.qk_norm=head"}), InputError);
  EXPECT_THROW(parse_config("", "test", {"--train.qk_clip=100", "--model.attention_softcap=50"}), InputError);
}

}  // namespace
}  // namespace sy
