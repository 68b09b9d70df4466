// Formats of packed weights: shapes of scales, and the checks of packed weights.
#include <gtest/gtest.h>

#include "kernels/device.h"
#include "kernels/ops/gemm.h"
#include "kernels/weight_format.h"

namespace sy {
namespace {

TEST(WeightFormat, ScalesCoverRowsAndDepthOfEachPass) {
  // 128 x 128 blocks, as of DeepSeek-V3: both passes read the same blocks, transposed.
  const ScaleBlock square{128, 128};
  EXPECT_EQ(square.scales({256, 300}, GemmPass::fprop), (Shape{2, 3}));
  EXPECT_EQ(square.scales({256, 300}, GemmPass::dgrad), (Shape{3, 2}));
  // 32 elements along the depth of one row, as of MXFP8.
  const ScaleBlock line{1, 32};
  EXPECT_EQ(line.scales({5, 256, 300}, GemmPass::fprop), (Shape{5, 256, 10}));
  EXPECT_EQ(line.scales({5, 256, 300}, GemmPass::dgrad), (Shape{5, 300, 8}));
  EXPECT_EQ(line.scales({0, 4}, GemmPass::dgrad), (Shape{4, 0}));
}

// The check of a packed weight names a scale that its format has not.
TEST(WeightFormat, NativeHasNoScales) {
  const auto device = make_cpu();
  EXPECT_TRUE(device->supports(WeightFormat::native));
  EXPECT_FALSE(info(WeightFormat::native).scale_block.present());
  const Tensor weight = device->tensor({3, 4}), scales = device->tensor({1, 1});
  const Index bytes = device->packed_weight_bytes(weight.shape(), DType::f32, GemmPass::fprop, WeightFormat::native);
  const Tensor packed = device->tensor({bytes}, DType::u8);
  const ops::PackWeight pack{.weight = weight, .pass = GemmPass::fprop, .packed = packed};
  run(*device, pack);
  ops::PackWeight scaled = pack;
  scaled.scales = scales;
  const auto refused = [](const std::string& message, auto&& call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const std::exception& e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  };
  refused("pack_weight: the weight format native has no scales", [&] { run(*device, scaled); });

  Weight w(weight);
  w.packed_fprop = {WeightFormat::native, packed, scales};
  const Tensor x = device->tensor({2, 4}), y = device->tensor({2, 3});
  refused("gemm: the weight format native has no scales",
          [&] { run(*device, ops::Gemm{.a = x, .b = w, .transpose_b = true, .c = y}); });
  w.packed_fprop.scales = {};
  run(*device, ops::Gemm{.a = x, .b = w, .transpose_b = true, .c = y});
}

}  // namespace
}  // namespace sy
