// Transfers between the host and a device, with sizes at and above the staging buffers.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/ops/elementwise.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

class Transfers : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!GetParam().available()) GTEST_SKIP() << "no device";
    device = GetParam().make();
  }
  // Returns values that differ for each element and each seed.
  static std::vector<std::int32_t> numbers(Index n, std::int32_t seed) {
    std::vector<std::int32_t> x(n);
    std::iota(x.begin(), x.end(), seed * 100'000'000);
    return x;
  }
  Tensor memory(Index n) { return device->tensor({n}, DType::i32); }

  std::unique_ptr<Device> device;
};
INSTANTIATE_TEST_SUITE_P(Targets, Transfers, testing::ValuesIn(f32_targets()), target_name);

TEST_P(Transfers, RoundTripThroughTheDevice) {
  constexpr Index mebi = (Index{1} << 20) / 4;  // elements of a MiB
  for (Index n : {Index{1}, Index{63}, Index{64}, Index{65}, mebi - 1, mebi, mebi + 1, 3 * mebi + 17, 37 * mebi + 5}) {
    const Tensor x = memory(n);
    const std::vector<std::int32_t> sent = numbers(n, 1);
    device->to_device(sent.data(), x);
    std::vector<std::int32_t> back(n, -1);
    device->to_host(x, back.data());
    EXPECT_TRUE(back == sent) << n << " elements";
  }
}

// When to_device returns, the host may overwrite the memory, even if the transfer is in flight.
TEST_P(Transfers, AllowTheHostToOverwriteItsBuffer) {
  constexpr Index n = 9001, many = 600;  // 21 MB
  std::vector<Tensor> tensors;
  for (std::int32_t i = 0; i < many; ++i) {
    tensors.push_back(memory(n));
    std::vector<std::int32_t> sent = numbers(n, i % 20);
    device->to_device(sent.data(), tensors.back());
    std::fill(sent.begin(), sent.end(), -1);
  }
  std::vector<std::int32_t> back(n);
  for (std::int32_t i = 0; i < many; ++i) {
    device->to_host(tensors[i], back.data());
    ASSERT_TRUE(back == numbers(n, i % 20)) << "tensor " << i;
  }
}

TEST_P(Transfers, ReadTheValuesFromWhenTheReadBegan) {
  for (Index n : {Index{0}, Index{5}, Device::read_limit / 4}) {
    const Tensor x = memory(n), other = memory(777);
    const std::vector<std::int32_t> first = numbers(n, 1), second = numbers(n, 2), third = numbers(777, 3);
    device->to_device(first.data(), x);
    device->begin_read(x);
    // Other transfers continue meanwhile.
    device->to_device(second.data(), x);
    device->to_device(third.data(), other);
    std::vector<std::int32_t> now(n), read(n, -1), beside(777);
    device->to_host(other, beside.data());
    device->to_host(x, now.data());
    device->end_read(read.data());
    EXPECT_TRUE(read == first && now == second && beside == third) << n << " elements";
  }
}

TEST_P(Transfers, KeepCopiesInStreamOrder) {
  constexpr Index n = 100'003;
  const Tensor x = memory(n), y = memory(n);
  const std::vector<std::int32_t> first = numbers(n, 1);
  device->to_device(first.data(), x);
  run(*device, ops::Copy{.x = x, .y = y});
  run(*device, ops::Fill{.x = x, .value = 0});
  std::vector<std::int32_t> back(n, -1);
  device->to_host(y, back.data());
  EXPECT_TRUE(back == first);
  device->to_host(x, back.data());
  EXPECT_TRUE(back == std::vector<std::int32_t>(n, 0));
}

}  // namespace
}  // namespace sy::test
