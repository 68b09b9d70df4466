// Tests of operations whose workspace is too small for all of their work. They split it and give
// the same bits.
#include "host_test.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/grouped_gemm.h"

namespace sy::cuda {
namespace {

class WorkspaceTest : public HostTest {
 protected:
  void give(Index bytes) {
    Context& of_device = context_of(*device);
    of_device.workspace = memory({bytes}, DType::u8).bytes();
    of_device.workspace_bytes = bytes;
  }
  const std::unique_ptr<Device> device = make_cuda();
};

// The backward pass stores one float for each position of each head in the workspace, and the sums
// of two splits of each kv head's query heads.
TEST_F(WorkspaceTest, SplitsAttentionBySequencesOrHeads) {
  constexpr Index batch = 3, positions = 64, heads = 6, kv_heads = 3, width = 8, splits = 2;
  constexpr Index delta_bytes = heads / kv_heads * positions * sizeof(float);
  constexpr Index kv_head_bytes = delta_bytes + splits * positions * 2 * width * sizeof(float);
  const Shape qkv_shape = {batch, positions, heads + 2 * kv_heads, width}, out_shape = {batch, positions, heads, width};
  std::vector<float> values(static_cast<std::size_t>(qkv_shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
  const View qkv = upload(values).reshape(qkv_shape);
  values.resize(static_cast<std::size_t>(out_shape.elements()));
  const View dout = upload(values).reshape(out_shape), out = memory(out_shape), lse = memory({batch, heads, positions});
  const AttentionDesc desc = {0.4f};
  const auto q = [](View x) { return heads_of(x, 0, heads); };
  const auto k = [](View x) { return heads_of(x, heads, kv_heads); };
  const auto v = [](View x) { return heads_of(x, heads + kv_heads, kv_heads); };
  run(*device, ops::AttentionForward{.q = q(qkv), .k = k(qkv), .v = v(qkv), .desc = desc, .out = out, .lse = lse});

  const auto gradient = [&](Index bytes) {
    give(bytes);
    const View dqkv = memory(qkv_shape);
    run(*device, ops::AttentionBackward{.dout = dout,
                                        .q = q(qkv),
                                        .k = k(qkv),
                                        .v = v(qkv),
                                        .out = out,
                                        .lse = lse,
                                        .desc = desc,
                                        .dq = q(dqkv),
                                        .dk = k(dqkv),
                                        .dv = v(dqkv)});
    device->synchronize();
    return download<float>(dqkv);
  };
  const std::vector<float> whole = gradient(batch * kv_heads * kv_head_bytes + workspace_padding);
  // The workspaces hold two sequences, two kv heads, and one kv head.
  for (Index count : {2 * kv_heads + 1, kv_heads - 1, Index{1}}) {
    const auto before = cuda_host::counters().launches;
    EXPECT_TRUE(gradient(count * kv_head_bytes + workspace_padding) == whole) << count << " kv heads";
    EXPECT_GE(cuda_host::counters().launches - before, 10) << count << " kv heads";
  }
  EXPECT_THROW(gradient(delta_bytes), std::logic_error);
}

// cuBLASLt reads the addend of a product in place, at any alignment that it has a kernel for. For
// other alignments the addend is copied first.
TEST_F(WorkspaceTest, ReadsAlignedAddendsWithoutACopy) {
  const auto copies = [&](auto one, Index n) {
    using T = decltype(one);
    constexpr Index m = 5, q = 8;
    const auto ones = [&](Index rows, Index columns) {  // begins one row after an aligned address
      return upload(std::vector<T>(static_cast<std::size_t>((rows + 1) * columns), one))
          .reshape({rows + 1, columns})
          .rows(1, rows);
    };
    const View a = ones(m, q), w = ones(n, q), from = ones(m, n), c = ones(m, n);
    const auto before = cuda_host::counters().copies;
    run(*device, ops::Gemm{.a = a, .b = w, .addend = from, .transpose_b = true, .c = c});
    device->synchronize();
    for (const T x : download<T>(c)) EXPECT_EQ(static_cast<float>(x), 9);
    return cuda_host::counters().copies - before;
  };
  EXPECT_EQ(copies(1.0f, 7), 0);
  EXPECT_EQ(copies(bf16(1), 6), 0);
  EXPECT_EQ(copies(bf16(1), 7), 1);
}

// Gradients of bf16 weights: the products of experts run on several streams, in any order, with the
// same result.
TEST_F(WorkspaceTest, RunsExpertProductsOnSideStreams) {
  constexpr Index experts = 7, rows = 40, n = 6, q = 10;
  const std::int32_t offsets[] = {0, 3, 11, 11, 20, 21, 33, rows};
  std::vector<bf16> values(static_cast<std::size_t>(rows * q));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = bf16(static_cast<float>(i * 7919 % 1000) / 500 - 1);
  const View x = upload(values).reshape({rows, q});
  values.resize(static_cast<std::size_t>(rows * n));
  const View dy = upload(values).reshape({rows, n});
  const GroupOffsets groups{upload(std::vector<std::int32_t>(offsets, offsets + experts + 1)), offsets};
  const View one_by_one = memory({experts, n, q});
  run(*device, ops::Fill{.x = one_by_one, .value = 0});
  for (Index e = 0; e < experts; ++e) {
    const Index count = offsets[e + 1] - offsets[e];
    if (count > 0)
      run(*device, ops::Gemm{.a = dy.rows(offsets[e], count),
                             .b = x.rows(offsets[e], count),
                             .transpose_a = true,
                             .accumulate = true,
                             .c = one_by_one.rows(e, 1).reshape({n, q})});
  }
  device->synchronize();
  const std::vector<float> expected = download<float>(one_by_one);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const View dw = memory({experts, n, q});
    if (seed > 0) cuda_host::set_running(cuda_host::Running::seeded, seed);
    const auto before = cuda_host::counters().product_switches;
    run(*device, ops::Fill{.x = dw, .value = 0});  // before all products
    run(*device, ops::GroupedGemmWgrad{.dy = dy, .x = x, .groups = groups, .dw = dw});
    run(*device, ops::Scale{.x = dw, .factor = 2});  // after all products
    device->synchronize();
    cuda_host::set_running(cuda_host::Running::at_once);
    const std::vector<float> found = download<float>(dw);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], 2 * expected[i]) << i;
    EXPECT_GE(cuda_host::counters().product_switches - before, 5);
  }
}

}  // namespace
}  // namespace sy::cuda
