// Biases by distance equal the numbers of the papers' own code.
#include "src/model/relative_bias.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace sy {
namespace {

TEST(Alibi, SlopesMatchThePaper) {
  // Press et al., figure 3 and section 3: 1/2, 1/4, ..., 1/256 for 8 heads, and 2^-0.5, 2^-1, ...,
  // 2^-8 for 16.
  const std::vector<float> eight = alibi_slopes(8), sixteen = alibi_slopes(16), twelve = alibi_slopes(12);
  ASSERT_EQ(eight.size(), 8u);
  ASSERT_EQ(sixteen.size(), 16u);
  ASSERT_EQ(twelve.size(), 12u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(eight[i], std::ldexp(1.0f, -i - 1));
  EXPECT_FLOAT_EQ(sixteen[0], std::sqrt(0.5f));
  EXPECT_EQ(sixteen[15], 1.0f / 256);
  // get_slopes(12) of the paper: the slopes of 8 heads, then the first, third, fifth and seventh of
  // 16.
  for (int i = 0; i < 8; ++i) EXPECT_EQ(twelve[i], eight[i]);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(twelve[8 + i], sixteen[2 * i]);
  EXPECT_EQ(alibi_slopes(1), std::vector<float>{1.0f / 256});
  EXPECT_EQ(alibi_slopes(112).size(), 112u);  // BLOOM
}

TEST(T5, BucketsMatchTheOriginalCode) {
  // _relative_position_bucket(bidirectional=False, num_buckets=32, max_distance=128) of
  // mesh_tensorflow.
  const auto bucket = [](Index distance) { return t5_bucket(distance, 32, 128); };
  for (Index d = 0; d < 16; ++d) EXPECT_EQ(bucket(d), d);
  // A bucket begins above a distance of 16 * 8^(k / 16).
  const Index first[] = {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  for (Index k = 0; k < 16; ++k) {
    EXPECT_EQ(bucket(first[k]), 16 + k) << first[k];
    EXPECT_EQ(bucket(first[k] - 1), 15 + k) << first[k] - 1;
  }
  EXPECT_EQ(bucket(127), 31);
  EXPECT_EQ(bucket(128), 31);
  EXPECT_EQ(bucket(100000), 31);
  EXPECT_EQ(t5_bucket(1, 2, 4), 1);
  EXPECT_EQ(t5_bucket(0, 2, 4), 0);
}

TEST(T5, BucketsOfBothSidesMatchTransformers) {
  // First distances to earlier keys of each bucket, by transformers'
  // _relative_position_bucket(bidirectional=True) with 32 buckets up to 128, and with 8 up to 9.
  const Index first[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
  for (Index k = 0; k < 16; ++k)
    for (Index d = first[k]; d < (k < 15 ? first[k + 1] : 300); ++d) {
      EXPECT_EQ(t5_bucket_of_both_sides(d, 32, 128), k) << d;
      EXPECT_EQ(t5_bucket_of_both_sides(-d, 32, 128), d == 0 ? 0 : 16 + k) << d;
    }
  const Index few[] = {0, 1, 2, 5};
  for (Index k = 0; k < 4; ++k)
    for (Index d = few[k]; d < (k < 3 ? few[k + 1] : 300); ++d) {
      EXPECT_EQ(t5_bucket_of_both_sides(d, 8, 9), k) << d;
      EXPECT_EQ(t5_bucket_of_both_sides(-d, 8, 9), d == 0 ? 0 : 4 + k) << d;
    }
}

}  // namespace
}  // namespace sy
