#include "tests/bench/gpu/threshold.h"

#include <gtest/gtest.h>

namespace sy::bench {
namespace {

constexpr Index one_call = std::numeric_limits<Index>::max();

TEST(Threshold, SeparatesSmallFromLargeSizes) {
  EXPECT_EQ(best_threshold({{100, 3, 1}, {400, 2, 1}, {1600, 1, 2}, {6400, 1, 3}}), 800);
  EXPECT_EQ(best_threshold({{1600, 1, 2}, {100, 3, 1}, {6400, 1, 3}, {400, 2, 1}}), 800);
}

TEST(Threshold, IsZeroOrUnlimitedIfOneModeIsAlwaysFaster) {
  EXPECT_EQ(best_threshold({{100, 1, 2}, {400, 1, 1.1}}), 0);
  EXPECT_EQ(best_threshold({{100, 2, 1}, {400, 1.1, 1}}), one_call);
  EXPECT_EQ(best_threshold({{100, 1, 2}}), 0);
  EXPECT_EQ(best_threshold({{100, 2, 1}}), one_call);
  EXPECT_ANY_THROW(best_threshold({}));
}

TEST(Threshold, PrefersTheLargestOfEqualOnes) {
  EXPECT_EQ(best_threshold({{100, 1, 1}, {400, 2, 2}}), one_call);
  EXPECT_EQ(best_threshold({{100, 1, 1}, {400, 1, 1}, {1600, 1, 2}}), 800);
  EXPECT_EQ(best_threshold({{100, 1, 4}, {400, 4, 1}}), one_call);
}

// One size contradicts the others: a small difference does not move the threshold, and a large one
// does.
TEST(Threshold, WeighsRatiosAndNotSeconds) {
  EXPECT_EQ(best_threshold({{100, 2, 1}, {400, 1, 2}, {1600, 1.2, 1}, {6400, 1, 2}}), 200);
  EXPECT_EQ(best_threshold({{100, 2, 1}, {400, 1, 2}, {1600, 9, 1}, {6400, 1, 2}}), 3200);
  EXPECT_EQ(best_threshold({{100, 2e-6, 1e-6}, {400, 100, 101}, {1600, 3e-6, 1e-6}}), one_call);
}

TEST(Threshold, KeepsProductsOfOneSizeTogether) {
  EXPECT_EQ(best_threshold({{100, 3, 1}, {400, 1, 4}, {400, 2, 1}, {1600, 1, 2}}), 200);
  EXPECT_EQ(best_threshold({{400, 1, 2}, {400, 4, 1}}), one_call);
  EXPECT_EQ(best_threshold({{400, 4, 1}, {400, 1, 2}}), one_call);
  EXPECT_EQ(best_threshold({{400, 1, 4}, {400, 2, 1}}), 0);
}

}  // namespace
}  // namespace sy::bench
