// Tests of the number of kernels that operations launch. A launch costs microseconds, whatever the
// number of tokens.
#include "host_test.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/ffn.h"
#include "kernels/ops/route.h"
#include "kernels/philox.h"

namespace sy::cuda {
namespace {

class LaunchesTest : public HostTest {
 protected:
  // Returns the number of kernels that `operations` launches.
  std::int64_t launches(const std::function<void()>& operations) {
    const auto before = cuda_host::counters().launches;
    operations();
    device->synchronize();
    return cuda_host::counters().launches - before;
  }
  View normal(const char* name, Shape shape) {
    const RandomStream numbers(11, name);
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(numbers.normal(static_cast<Index>(i)));
    return upload(values).reshape(shape);
  }
  const std::unique_ptr<Device> device = make_cuda();
};

// The routing of one MoE layer: its operations from the logits to the order of the rows. Kernels of
// the CPU compute the same.
struct RoutingTables {
  Index segments, T, k, E;
  ExpertPartition partition;
  CapacityDesc capacity;
  View experts, weights, counts, probability, z_squared, dispatch_mask, physical_experts, tokens, row_id_map,
      rank_counts, tokens_per_expert, row_tokens, rows, offsets, row_weights;

  template <class Allocate>
  RoutingTables(const Allocate& allocate, Index g, Index t, Index e, CapacityDesc desc)
      : segments(g), T(t), k(4), E(e), partition{.ep = 8}, capacity(desc) {
    const auto i32 = [&](Shape shape) { return allocate(shape, DType::i32); };
    const auto f32 = [&](Shape shape) { return allocate(shape, DType::f32); };
    experts = i32({T, k}), weights = f32({T, k}), counts = i32({segments, E}), probability = f32({segments, E});
    z_squared = allocate(Shape{1}, DType::f64);
    if (capacity.capacity > 0) dispatch_mask = i32({T, k});
    physical_experts = i32({T, k}), tokens = i32({T * k}), row_id_map = i32({T, k});
    rank_counts = i32({8, 1 + E / 8}), tokens_per_expert = i32({E});
    row_tokens = i32({T * k}), rows = i32({T, k}), offsets = i32({E + 1}), row_weights = f32({T * k});
  }
  void lay_out(Device& device, ConstView logits) const {
    run(device, ops::RouteForward{.logits = logits,
                                  .desc = {.top_k = static_cast<int>(k)},
                                  .experts = experts,
                                  .weights = weights,
                                  .counts = counts,
                                  .probability = probability,
                                  .z_squared = z_squared});
    if (dispatch_mask)
      run(device, ops::ApplyCapacity{.experts = experts,
                                     .weights = weights,
                                     .segments = segments,
                                     .num_experts = E,
                                     .desc = capacity,
                                     .dispatch_mask = dispatch_mask});
    run(device, ops::DispatchLayout{.experts = experts,
                                    .dispatch_mask = dispatch_mask,
                                    .partition = partition,
                                    .physical_experts = physical_experts,
                                    .tokens = tokens,
                                    .row_id_map = row_id_map,
                                    .counts = rank_counts,
                                    .tokens_per_expert = tokens_per_expert});
  }
  void sort(Device& device) const {
    run(device, ops::BuildPermutation{.physical_experts = physical_experts,
                                      .weights = weights,
                                      .tokens = row_tokens,
                                      .row_id_map = rows,
                                      .offsets = offsets,
                                      .row_weights = row_weights});
  }
  std::vector<View> integers() const {
    return {experts,    counts, physical_experts, tokens, row_id_map, rank_counts, tokens_per_expert,
            row_tokens, rows,   offsets};
  }
};

TEST_F(LaunchesTest, RoutingTakesAtMostFive) {
  struct {
    Index segments, tokens, experts;
    CapacityDesc capacity;
    int layout, sort;  // launches
  } const cases[] = {{1, 1500, 64, {}, 4, 1},
                     {4, 6000, 64, {}, 4, 2},
                     {4, 6000, 16, {DropOrder::token, 300}, 5, 2},
                     {4, 6000, 16, {DropOrder::choice, 300}, 5, 2}};
  const std::unique_ptr<Device> cpu = make_cpu();
  for (const auto& c : cases) {
    std::vector<Tensor> owned;
    const auto on_cpu = [&](Shape shape, DType type) { return owned.emplace_back(cpu->tensor(shape, type)).view(); };
    const RoutingTables found(memory, c.segments, c.tokens, c.experts, c.capacity),
        expected(on_cpu, c.segments, c.tokens, c.experts, c.capacity);
    const View logits = normal("logits", {c.tokens, c.experts});
    run(*device, ops::Fill{.x = found.row_weights, .value = 0});
    const auto layout = launches([&] { found.lay_out(*device, logits); });
    EXPECT_EQ(layout, c.layout) << c.tokens << " tokens";
    EXPECT_LE(layout, 5);
    EXPECT_EQ(launches([&] { found.sort(*device); }), c.sort) << c.tokens << " tokens";

    const View host_logits = on_cpu(logits.shape(), DType::f32);
    device->to_host(logits, host_logits.bytes());
    expected.lay_out(*cpu, host_logits);
    expected.sort(*cpu);
    const std::vector<View> on_device = found.integers(), on_host = expected.integers();
    for (std::size_t i = 0; i < on_device.size(); ++i) {
      const std::vector<std::int32_t> values = download<std::int32_t>(on_device[i]);
      EXPECT_TRUE(std::equal(values.begin(), values.end(), on_host[i].i32())) << "table " << i;
    }
    // The weights of rows are those of their assignments, bit by bit.
    const std::vector<float> weights = download<float>(found.weights), by_row = download<float>(found.row_weights);
    const std::vector<std::int32_t> rows = download<std::int32_t>(found.rows);
    for (std::size_t a = 0; a < rows.size(); ++a) {
      if (rows[a] < 0) continue;
      EXPECT_EQ(by_row[static_cast<std::size_t>(rows[a])], weights[a]);
    }
  }
}

// The gradients of gate and up projection, and the activation, are one kernel.
TEST_F(LaunchesTest, BackwardOfAnActivationIsOne) {
  constexpr Index rows = 9, f = 24, d = 8;
  const View h = normal("h", {rows, 2 * f}), dy = normal("dy", {rows, f}), dh = memory({rows, 2 * f}),
             y = memory({rows, f}), w = normal("w", {d, f}), dout = normal("dout", {rows, d}), dscale = memory({rows});
  const FfnActivation silu{Activation::silu, true};
  EXPECT_EQ(launches([&] {
              run(*device, ops::ActivationBackward{
                               .dy = dy, .h = h, .activation = silu, .dh = dh, .drow_scale = dscale, .y = y});
            }),
            1);
  EXPECT_EQ(launches([&] {  // without those of cuBLAS
              run(*device, ops::FfnBackward{.dout = dout, .w = w, .h = h, .activation = silu, .dh = dh, .y = y});
            }),
            1);
}

}  // namespace
}  // namespace sy::cuda
