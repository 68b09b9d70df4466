// Attention with locality-sensitive hashing.
#include <gtest/gtest.h>

#include "kernels/ops/attention.h"
#include "kernels/ops/lsh.h"
#include "src/numerics/cases/lsh.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

// Devices without these operations are skipped.
class LshOps : public DeviceOps {
 protected:
  void SetUp() override {
    DeviceOps::SetUp();
    if (!IsSkipped() && !device->has_kernel(ops::LshSort::name)) GTEST_SKIP() << "the device has no hashing";
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, LshOps, testing::ValuesIn(targets), target_name);

// More queries and keys than a block, chunks that see others twice, and one token.
const LshSizes sizes_of_lsh[] = {
    {{1, 300, 1, 16, 16, 100, 1, 0, true, 1.0}, 2, {8}}, {{1, 300, 2, 7, 7, 150, 1, 1, false, 1.0}, 1, {2, 2, 2}},
    {{3, 5, 2, 4, 6, 2, 2, 0, true, 2.0}, 4, {4, 2}},    {{3, 8, 1, 4, 4, 4, 1, 1, false, 1.0}, 2, {2}, true},
    {{2, 1, 1, 4, 4, 1, 1, 0, true, 1.0}, 2, {2}},       {{2, 12, 1, 4, 4, 3, 1, 0, false, 1.0, 0.1}, 0, {}},
    {{0, 4, 1, 4, 4, 2, 1, 0, true, 1.0}, 1, {2}},       {{2, 33, 3, 1, 17, 11, 0, 1, false, 1.0}, 3, {2}, true},
};

TEST_P(LshOps, SortMatchesReference) {
  for (const LshSizes& sizes : sizes_of_lsh)
    if (sizes.rounds > 0) check(LshSort(sizes));
}

TEST_P(LshOps, AttentionMatchesReference) {
  for (const LshSizes& sizes : sizes_of_lsh) {
    check(LshAttentionForward(sizes));
    check(LshAttentionBackward(sizes));
  }
}

// In one chunk of all tokens, each query sees all keys but its own, as in attention with queries x
// and keys x / |x|, whose mask has no diagonal. The first query sees its own key alone.
TEST(LshReference, OneBucketIsFullAttention) {
  constexpr Index B = 2, S = 7, H = 2, w = 5;
  Numbers x(B * S * H * w), v(x.size());
  const RandomStream random(5, "x and v");
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = random.normal(2 * i);
    v[i] = random.normal(2 * i + 1);
  }
  Numbers keys = x;
  for (std::size_t row = 0; row < keys.size(); row += w) {
    const double length = std::sqrt(std::inner_product(&x[row], &x[row] + w, &x[row], 0.0));
    for (std::size_t c = row; c < row + w; ++c) keys[c] /= length;
  }
  for (const bool causal : {true, false}) {
    const ref::LshShape shape{B, S, H, w, w, S, 0, 0, causal, 0.8};
    const Numbers got = ref::lsh_attention(shape, x, v, ref::lsh_positions(shape)).out;
    const Numbers want =
        ref::attention(
            B, {x.data(), S, H, 0, H, w}, {keys.data(), S, H, 0, H, w}, {v.data(), S, H, 0, H, w}, 0.8, 0.0,
            [&](Index, Index i, Index j) { return (i != j && (!causal || j < i)) || (causal && i == 0 && j == 0); })
            .out;
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12) << i;
  }
}

}  // namespace
}  // namespace sy::test
