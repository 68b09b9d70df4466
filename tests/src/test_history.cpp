#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/train/history.h"

namespace sy {
namespace {

StepResult step_with(Index routed, Index dropped, double probability) {
  StepResult r;
  r.routed = {{routed, 2 * routed}};
  r.dropped = {{dropped, 0}};
  r.probability = {{probability, 1 - probability}};
  return r;
}

ExpertHistory one_layer_of_two() {
  ExpertHistory h;
  h.layers = 1;
  h.experts = 2;
  h.layer_ids = {3};
  return h;
}

TEST(History, SumsCountsAndAveragesProbability) {
  ExpertHistory h = one_layer_of_two();
  HistoryWindow w;
  w.close(0, h);
  EXPECT_EQ(h.windows(), 0);
  w.add(step_with(10, 1, 0.25));
  w.add(step_with(20, 2, 0.75));
  w.close(2, h);
  w.add(step_with(5, 5, 0.125));
  w.close(3, h);
  EXPECT_EQ(h.steps, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(h.routed, (std::vector<std::int64_t>{30, 60, 5, 10}));
  EXPECT_EQ(h.dropped, (std::vector<std::int64_t>{3, 0, 5, 0}));
  EXPECT_EQ(h.probability, (std::vector<float>{0.5f, 0.5f, 0.125f, 0.875f}));
  EXPECT_EQ(counts_since(0, h).routed, (std::vector<std::vector<Index>>{{35, 70}}));
  EXPECT_EQ(counts_since(2, h).dropped, (std::vector<std::vector<Index>>{{5, 0}}));
}

// A skipped step may have probabilities that are not finite.
TEST(History, LeavesOutProbabilitiesThatAreNotFinite) {
  ExpertHistory h = one_layer_of_two();
  HistoryWindow w;
  w.add(step_with(10, 1, std::nan("")));
  w.add(step_with(20, 2, 0.25));
  w.add(step_with(30, 3, std::numeric_limits<double>::infinity()));
  w.add(step_with(40, 4, 0.75));
  w.close(4, h);
  w.add(step_with(5, 5, std::nan("")));
  w.close(5, h);
  EXPECT_EQ(h.routed, (std::vector<std::int64_t>{100, 200, 5, 10}));
  EXPECT_EQ(h.dropped, (std::vector<std::int64_t>{10, 0, 5, 0}));
  ASSERT_EQ(h.probability.size(), 4u);
  EXPECT_EQ(h.probability[0], 0.5f);
  EXPECT_EQ(h.probability[1], 0.5f);
  EXPECT_TRUE(std::isnan(h.probability[2]));
}

TEST(History, MergesAWindowWithoutProbabilities) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  ExpertHistory h = one_layer_of_two();
  h.steps = {1, 2, 3, 4, 5, 6, 7, 8};
  h.routed.assign(16, 1);
  h.dropped.assign(16, 0);
  h.probability = {none, none, 0.75f, 0.25f, 0.5f, 0.5f, none, none, 1, 0, 1, 0, 1, 0, 1, 0};
  merge_older_half(h);
  EXPECT_EQ(h.probability, (std::vector<float>{0.75f, 0.25f, 0.5f, 0.5f, 1, 0, 1, 0, 1, 0, 1, 0}));
}

TEST(History, StaysBoundedAndKeepsAllCounts) {
  ExpertHistory h = one_layer_of_two();
  HistoryWindow w;
  const Index steps = 3 * ExpertHistory::max_windows;
  for (Index s = 1; s <= steps; ++s) {
    w.add(step_with(s, 1, 0.25));
    w.close(s, h);
    ASSERT_LE(h.windows(), ExpertHistory::max_windows);
  }
  EXPECT_EQ(h.steps.back(), steps);
  EXPECT_TRUE(std::is_sorted(h.steps.begin(), h.steps.end()));
  EXPECT_EQ(counts_since(0, h).routed[0][0], steps * (steps + 1) / 2);
  EXPECT_EQ(counts_since(0, h).dropped[0][0], steps);
  EXPECT_EQ(counts_since(steps - 7, h).dropped[0][0], 7);  // the newest windows keep resolution
  for (Index i = 0; i < h.windows(); ++i) ASSERT_FLOAT_EQ(h.probability[2 * i], 0.25f);
}

// With 200 layers of 256 experts, a window is a megabyte: 10,000 of them would be ten gigabytes.
TEST(History, IsBoundedInBytes) {
  ExpertHistory h;
  h.layers = 200;
  h.experts = 256;
  const Index row = h.layers * h.experts;
  const std::vector<std::int64_t> routed(row, 3), dropped(row, 1);
  const std::vector<float> probability(row, 0.5f);
  for (Index s = 1; s <= 300; ++s) {
    h.append(2 * s, routed, dropped, probability);
    ASSERT_LE(h.windows() * row * 20, Index{64} << 20);
  }
  EXPECT_GT(h.windows(), 30);
  EXPECT_EQ(h.steps.back(), 600);
  EXPECT_EQ(h.steps[h.windows() - 2], 598);
  for (const Index cell : {Index{0}, row - 1}) {
    Index sum = 0, drops = 0;
    for (Index w = 0; w < h.windows(); ++w) {
      sum += h.routed[w * row + cell];
      drops += h.dropped[w * row + cell];
      ASSERT_EQ(h.probability[w * row + cell], 0.5f);
    }
    EXPECT_EQ(sum, 300 * 3);
    EXPECT_EQ(drops, 300);
  }
  // One window alone exceeds the limit of bytes. Eight windows stay nevertheless.
  ExpertHistory wide;
  wide.layers = 1 << 10;
  wide.experts = 1 << 20;
  EXPECT_EQ(wide.bound(), 8);
  EXPECT_EQ(ExpertHistory{}.bound(), ExpertHistory::max_windows);
}

// Windows of one and of three steps: the longer one has three times the weight.
TEST(History, WeighsMergedWindowsBySteps) {
  ExpertHistory h = one_layer_of_two();
  h.steps = {1, 4, 5, 6};
  h.routed = {1, 2, 30, 40, 5, 6, 7, 8};
  h.dropped = {0, 1, 2, 3, 4, 5, 6, 7};
  h.probability = {0.25f, 0.75f, 0.75f, 0.25f, 0.5f, 0.5f, 1, 0};
  merge_older_half(h);
  EXPECT_EQ(h.steps, (std::vector<std::int64_t>{4, 5, 6}));
  EXPECT_EQ(h.routed, (std::vector<std::int64_t>{31, 42, 5, 6, 7, 8}));
  EXPECT_EQ(h.dropped, (std::vector<std::int64_t>{2, 4, 4, 5, 6, 7}));
  EXPECT_EQ(h.probability, (std::vector<float>{0.625f, 0.375f, 0.5f, 0.5f, 1, 0}));
}

}  // namespace
}  // namespace sy
