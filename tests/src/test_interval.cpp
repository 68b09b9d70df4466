// Confidence intervals of a median.
#include "src/experiments/outcome.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

namespace sy {
namespace {

std::vector<double> numbers(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.rbegin(), values.rend(), 1.0);  // in falling order
  return values;
}

// The table "Confidence intervals for the population median" of textbooks of statistics: n, j and k
// of [x(j), x(k)], and the confidence level in percent. The narrowest interval above 95 %, or the
// range.
TEST(MedianInterval, IsThatOfTheTable) {
  struct Row {
    int n, j, k;
    double percent;
  };
  constexpr Row table[] = {{2, 1, 2, 50.0},   {3, 1, 3, 75.0},   {4, 1, 4, 87.5},   {5, 1, 5, 93.8},
                           {6, 1, 6, 96.9},   {7, 1, 7, 98.4},   {8, 1, 8, 99.2},   {9, 2, 8, 96.1},
                           {10, 2, 9, 97.9},  {11, 2, 10, 98.8}, {12, 3, 10, 96.1}, {13, 3, 11, 97.8},
                           {14, 3, 12, 98.7}, {15, 4, 12, 96.5}, {16, 4, 13, 97.9}, {17, 5, 13, 95.1},
                           {18, 5, 14, 96.9}, {19, 5, 15, 98.1}, {20, 6, 15, 95.9}};
  for (const Row& row : table) {
    const auto interval = median_interval(numbers(row.n));
    ASSERT_TRUE(interval) << row.n;
    EXPECT_EQ(interval->low, row.j) << row.n;
    EXPECT_EQ(interval->high, row.k) << row.n;
    EXPECT_NEAR(100 * interval->coverage, row.percent, 0.051) << row.n;
  }
  EXPECT_FALSE(median_interval({}));
  EXPECT_FALSE(median_interval({1.5}));
}

// Each value lies below or above the median with probability 1/2. All cases are counted.
TEST(MedianInterval, CoversTheMedianAsOftenAsItSays) {
  for (int n = 2; n <= 14; ++n) {
    const auto interval = median_interval(numbers(n));
    const int j = static_cast<int>(interval->low), k = static_cast<int>(interval->high);
    int covered = 0;
    for (unsigned below = 0; below < 1u << n; ++below) {
      // The median lies between x(m) and x(m + 1).
      const int m = std::popcount(below);
      covered += m >= j && m < k;
    }
    EXPECT_DOUBLE_EQ(interval->coverage, covered / std::pow(2.0, n)) << n;
  }
}

TEST(MedianInterval, HasOtherConfidences) {
  const auto interval = median_interval(numbers(11), 0.9);
  EXPECT_EQ(interval->low, 3);
  EXPECT_EQ(interval->high, 9);
  EXPECT_NEAR(interval->coverage, 0.935, 0.0005);
}

}  // namespace
}  // namespace sy
