// Tests of expert products by one cuBLAS call for all, on side streams, and one after the other.
// SWITCHYARD_SMALL_PRODUCT and SWITCHYARD_LARGE_PRODUCT choose between these ways, which all give
// the same result.
#include <cstdlib>
#include <optional>
#include <string>

#include "host_test.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/grouped_gemm.h"

namespace sy::cuda {
namespace {

class GroupedTest : public HostTest {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    x = values({rows, q}, 3), w = values({experts, n, q}, 7), dy = values({rows, n}, 11);
    groups = {upload(std::vector<std::int32_t>(offsets, offsets + experts + 1)), offsets};
  }
  void TearDown() override {
    unsetenv("SWITCHYARD_LARGE_PRODUCT");
    unsetenv("SWITCHYARD_SMALL_PRODUCT");
    HostTest::TearDown();
  }
  struct Limits {
    std::string small, large;
  };
  // Empty: the device's defaults.
  static std::unique_ptr<Device> device_of(const std::optional<Limits>& limits) {
    if (limits) {
      setenv("SWITCHYARD_SMALL_PRODUCT", limits->small.c_str(), 1);
      setenv("SWITCHYARD_LARGE_PRODUCT", limits->large.c_str(), 1);
    }
    return make_cuda();
  }

  // Experts own 0, 8, 0, 3 and 29 of 40 rows. The product of the mean expert has 8 n q
  // multiplications.
  static constexpr Index experts = 5, rows = 40, n = 8, q = 16, mean = rows / experts * n * q;
  const std::int32_t offsets[experts + 1] = {0, 0, 8, 8, 11, rows};
  View values(Shape shape, int seed) {
    std::vector<float> drawn(static_cast<std::size_t>(shape.elements()));
    for (std::size_t i = 0; i < drawn.size(); ++i)
      drawn[i] = static_cast<float>((i + 1) * 7919 * seed % 1000) / 500 - 1;
    return upload(drawn).reshape(shape);
  }
  View x, w, dy;
  GroupOffsets groups;

  struct Results {
    std::vector<float> y, dx, dw;
    std::int64_t calls, switches;  // of cuBLAS; to another stream
  };
  Results results(const std::optional<Limits>& limits) {
    const std::unique_ptr<Device> device = device_of(limits);
    const View y = memory({rows, n}), dx = memory({rows, q}), dw = values({experts, n, q}, 13);
    const cuda_host::Counters before = cuda_host::counters();
    run(*device, ops::GroupedGemm{.x = x, .w = w, .groups = groups, .y = y});
    run(*device, ops::GroupedGemmDgrad{.dy = dy, .w = w, .groups = groups, .dx = dx});
    run(*device, ops::GroupedGemmWgrad{.dy = dy, .x = x, .groups = groups, .dw = dw});
    device->synchronize();
    const cuda_host::Counters after = cuda_host::counters();
    return {download<float>(y), download<float>(dx), download<float>(dw), after.product_calls - before.product_calls,
            after.product_switches - before.product_switches};
  }
};

TEST_F(GroupedTest, ChoosesTheWayBySize) {
  constexpr std::int64_t each = 3 * 3, all = 3;  // three experts own rows
  const std::string size = std::to_string(mean), above = std::to_string(mean + 1);
  const auto expect = [&](const std::optional<Limits>& limits, std::int64_t calls, bool streams) {
    const Results found = results(limits);
    EXPECT_EQ(found.calls, calls);
    EXPECT_EQ(found.switches > 1, streams);
  };
  expect({}, all, false);
  expect({{above, above}}, all, false);
  expect({{size, above}}, each, true);
  expect({{size, size}}, each, false);
  expect({{above, size}}, each, false);
  expect({{"0", "9223372036854775807"}}, each, true);
}

TEST_F(GroupedTest, ComputesTheSameInEveryMode) {
  const Results each = results({{"0", "0"}}), all = results({{"9223372036854775807", "9223372036854775807"}}),
                streams = results({{"0", "9223372036854775807"}});
  const std::vector<float> X = download<float>(x), W = download<float>(w), DY = download<float>(dy),
                           before = download<float>(values({experts, n, q}, 13));
  std::vector<double> y(rows * n), dx(rows * q), dw(before.begin(), before.end());
  for (Index e = 0; e < experts; ++e)
    for (Index r = offsets[e]; r < offsets[e + 1]; ++r)
      for (Index i = 0; i < n; ++i)
        for (Index j = 0; j < q; ++j) {
          const double weight = W[(e * n + i) * q + j];
          y[r * n + i] += X[r * q + j] * weight;
          dx[r * q + j] += DY[r * n + i] * weight;
          dw[(e * n + i) * q + j] += double(DY[r * n + i]) * X[r * q + j];
        }
  const auto expect_near = [](const std::vector<float>& found, const std::vector<double>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4) << i;
  };
  for (const Results* found : {&each, &all, &streams}) {
    expect_near(found->y, y);
    expect_near(found->dx, dx);
    expect_near(found->dw, dw);
  }
}

TEST_F(GroupedTest, RejectsAThresholdThatIsNotANumber) {
  for (const char* text : {"", "-1", "1e9", "12 ", "99999999999999999999"})
    for (const Limits& limits : {Limits{text, "1"}, Limits{"1", text}})
      EXPECT_THROW(device_of(limits), InputError) << text;
}

}  // namespace
}  // namespace sy::cuda
