// Tests of the parts of the experts' products by CUTLASS that need no card: which products the
// kernel serves, its tiles, and its loads. A stand-in takes the place of the kernel.
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "host_test.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/expert_loads.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/permute.h"

namespace sy::cuda {
namespace {

// Computes a product on the host, element by element, as its numbers and addresses say.
class ProductsOnHost final : public ExpertProducts {
 public:
  void run(const ExpertProduct& p) override {
    ++products;
    const auto first_row = [&](const ExpertOperand& x, Index e) {
      return x.rows > 0 ? e * x.rows : Index{p.outputs.offsets[e]};
    };
    const auto element = [&](const ExpertOperand& x, Index e, Index row, Index column) {
      const Index r = first_row(x, e) + row;
      std::uint16_t bits;
      std::memcpy(&bits, static_cast<const std::uint16_t*>(x.values) + (x.index ? x.index[r] : r) * x.width + column,
                  2);
      return double{float_of_bf16(bits)};
    };
    for (Index e = 0; e < p.outputs.experts; ++e) {
      const Index owned = p.outputs.offsets[e + 1] - p.outputs.offsets[e],
                  rows = p.outputs.rows ? p.outputs.rows : owned, depth = p.depth ? p.depth : owned;
      if (owned == 0 && p.outputs.skips_empty) continue;
      for (Index m = 0; m < rows; ++m)
        for (Index n = 0; n < p.outputs.columns; ++n) {
          double sum = 0;
          for (Index d = 0; d < depth; ++d)
            sum += (p.pass == ExpertPass::wgrad ? element(p.a, e, d, m) : element(p.a, e, m, d)) *
                   (p.pass == ExpertPass::fprop ? element(p.b, e, n, d) : element(p.b, e, d, n));
          sums[{e, m, n}] = sum;
        }
    }
  }
  int products = 0;
  // by expert, row and column of its output
  std::map<std::tuple<Index, Index, Index>, double> sums;
};

class ExpertProductsTest : public HostTest {
 protected:
  static constexpr Index experts = 4, rows = 40, tokens = 13, n = 16, q = 24;
  const std::int32_t offsets[experts + 1] = {0, 9, 9, 12, rows};
  ExpertProductsTest() : device(make_cuda()) { context_of(*device).expert_products = &kernel; }

  // Values that bf16 represents.
  View values(Shape shape, int seed, DType type = DType::bf16) {
    const View x = memory(shape, type);
    std::vector<float> drawn(static_cast<std::size_t>(shape.elements()));
    for (std::size_t i = 0; i < drawn.size(); ++i)
      drawn[i] = static_cast<float>(static_cast<int>((i + 1) * 7919 * static_cast<std::size_t>(seed) % 31) - 15) / 8;
    run(*device, ops::Convert{.x = upload(drawn).reshape(shape), .y = x});
    device->synchronize();
    return x;
  }
  GroupOffsets groups() { return {upload(std::vector<std::int32_t>(offsets, offsets + experts + 1)), offsets}; }
  View index() {
    std::vector<std::int32_t> drawn(rows);
    for (std::size_t r = 0; r < drawn.size(); ++r) drawn[r] = static_cast<std::int32_t>(r * 7 % tokens);
    return upload(drawn);
  }
  // Elements of a bf16 view.
  std::vector<float> floats(ConstView x) {
    const View y = memory(x.shape());
    run(*device, ops::Convert{.x = x, .y = y});
    device->synchronize();
    return download<float>(y);
  }

  std::unique_ptr<Device> device;
  ProductsOnHost kernel;
};

// The stand-in computes products of gathered rows from their numbers and addresses. The device
// computes them from rows that were gathered before.
TEST_F(ExpertProductsTest, DescribesEachProduct) {
  const View x = values({tokens, q}, 3), dy = values({tokens, n}, 5), w = values({experts, n, q}, 7), by = index(),
             xs = memory({rows, q}, DType::bf16), dys = memory({rows, n}, DType::bf16);
  const GroupOffsets owned = groups();
  run(*device, ops::Permute{.x = x, .index = by, .y = xs});
  run(*device, ops::Permute{.x = dy, .index = by, .y = dys});
  const View y = memory({rows, n}, DType::bf16), dx = memory({rows, q}, DType::bf16),
             dw = values({experts, n, q}, 11, DType::f32), before = values({experts, n, q}, 11, DType::f32);
  const auto compare = [&](const auto& found, const auto& gathered, View to, bool by_rows, ConstView added) {
    kernel.sums.clear();
    context_of(*device).expert_products = &kernel;
    run(*device, found);
    context_of(*device).expert_products = nullptr;
    run(*device, gathered);
    const std::vector<float> expected = floats(to);
    const std::vector<float> more = added ? download<float>(added) : std::vector<float>(expected.size());
    // If it accumulates, the product skips the expert without rows.
    const std::size_t of_empty = added ? std::size_t{n * q} : 0;
    EXPECT_EQ(kernel.sums.size() + of_empty, expected.size());
    for (const auto& [at, sum] : kernel.sums) {
      const auto& [e, row, column] = at;
      const Index i =
          ((by_rows ? offsets[e] : e * to.dim(1)) + row) * to.dim(static_cast<int>(to.shape().size()) - 1) + column;
      EXPECT_NEAR(sum + more[i], expected[i], 0.01 * std::abs(expected[i]) + 1e-3) << e << " " << row << " " << column;
    }
  };
  using Rows = GatheredRows;
  compare(ops::GroupedGemm{.x = Rows(x, by), .w = w, .groups = owned, .y = y},
          ops::GroupedGemm{.x = xs, .w = w, .groups = owned, .y = y}, y, true, {});
  compare(ops::GroupedGemmDgrad{.dy = Rows(dy, by), .w = w, .groups = owned, .dx = dx},
          ops::GroupedGemmDgrad{.dy = dys, .w = w, .groups = owned, .dx = dx}, dx, true, {});
  for (const bool adds : {true, false})
    compare(ops::GroupedGemmWgrad{.dy = Rows(dy, by), .x = Rows(x, by), .groups = owned, .accumulate = adds, .dw = dw},
            ops::GroupedGemmWgrad{.dy = dys, .x = xs, .groups = owned, .accumulate = adds, .dw = dw}, dw, false,
            adds ? before : View{});
}

TEST_F(ExpertProductsTest, ServesAlignedBf16) {
  const auto served = [&](Index width, DType type, DType gradient, Index shift) {
    const View x = memory({rows, width}, type), dy = memory({rows, n}, type), w = memory({experts, n, width}, type),
               all = memory({experts * n * width + 8}, gradient);
    const View dw = View(all.bytes() + shift, {experts, n, width}, gradient);
    const GroupOffsets owned = groups();
    const ExpertProduct products[] = {
        expert_product(ops::GroupedGemm{.x = x, .w = w, .groups = owned, .y = dy}),
        expert_product(ops::GroupedGemmDgrad{.dy = dy, .w = w, .groups = owned, .dx = x}),
        expert_product(ops::GroupedGemmWgrad{.dy = dy, .x = x, .groups = owned, .dw = dw})};
    return std::vector<bool>{is_served(products[0]), is_served(products[1]), is_served(products[2])};
  };
  using Answers = std::vector<bool>;
  EXPECT_EQ(served(24, DType::bf16, DType::f32, 0), (Answers{true, true, true}));
  EXPECT_EQ(served(24, DType::bf16, DType::bf16, 0), (Answers{true, true, false}));
  EXPECT_EQ(served(24, DType::bf16, DType::f32, 8), (Answers{true, true, false}));
  EXPECT_EQ(served(20, DType::bf16, DType::f32, 0), (Answers{false, false, false}));
  EXPECT_EQ(served(24, DType::f32, DType::f32, 0), (Answers{false, false, false}));
}

// cuBLAS computes the products that the kernel does not serve.
TEST_F(ExpertProductsTest, LeavesTheRestToCublas) {
  const GroupOffsets owned = groups();
  const auto calls = [&](Index width, DType type) {
    const View x = values({rows, width}, 3, type), w = values({experts, n, width}, 7, type),
               y = memory({rows, n}, type);
    const auto before = cuda_host::counters().product_calls;
    run(*device, ops::GroupedGemm{.x = x, .w = w, .groups = owned, .y = y});
    device->synchronize();
    return cuda_host::counters().product_calls - before;
  };
  EXPECT_EQ(calls(24, DType::bf16), 0);
  EXPECT_EQ(kernel.products, 1);
  EXPECT_GT(calls(20, DType::bf16), 0);
  EXPECT_GT(calls(24, DType::f32), 0);
  EXPECT_EQ(kernel.products, 1);
  EXPECT_TRUE(device->supports_gathered_rows(DType::bf16, {24, 16, 0}));
  EXPECT_FALSE(device->supports_gathered_rows(DType::bf16, {24, 12}));
  EXPECT_FALSE(device->supports_gathered_rows(DType::f32, {24, 16}));
  context_of(*device).expert_products = nullptr;
  EXPECT_FALSE(device->supports_gathered_rows(DType::bf16, {24, 16}));
}

// Three blocks of a kernel find each tile once, in any case of empty and of narrow experts.
TEST(GroupedTiles, AreEachFoundOnce) {
  const std::vector<std::int32_t> offsets = {0, 0, 1, 129, 129, 129 + 2000, 129 + 2000 + 256};
  for (const Index fixed_rows : {0, 1, 300, 1100})
    for (const Index columns : {8, 256, 264, 1000})
      for (const bool skips_empty : {false, true}) {
        const GroupedOutputs outputs{std::ssize(offsets) - 1, offsets.data(), fixed_rows, columns, skips_empty};
        std::set<std::tuple<Index, Index, Index>> expected, found;
        for (Index e = 0; e < outputs.experts; ++e) {
          const Index owned = offsets[e + 1] - offsets[e];
          if (owned == 0 && skips_empty) continue;
          for (Index row = 0; row < (fixed_rows ? fixed_rows : owned); row += GroupedTile::rows)
            for (Index column = 0; column < columns; column += GroupedTile::columns) expected.emplace(e, row, column);
        }
        Index count = 0;
        for (Index block = 0; block < 3; ++block) {
          TileWalk walk(outputs);
          for (Index tile = block; walk.move_to(tile); tile += 3, ++count) {
            found.emplace(walk.origin().expert, walk.origin().row, walk.origin().column);
            EXPECT_EQ(walk.owned(), offsets[walk.origin().expert + 1] - offsets[walk.origin().expert]);
          }
        }
        EXPECT_EQ(found, expected) << fixed_rows << " rows, " << columns << " columns";
        EXPECT_EQ(count, std::ssize(expected));
        EXPECT_LE(count, max_tiles(outputs, offsets.back()));
      }
}

// Near tiles share operands: 16 of them in a row read at most 10 strips of 128 rows or 256 columns.
TEST(GroupedTiles, ShareOperands) {
  const std::int32_t offsets[] = {0, 4096};
  const GroupedOutputs outputs{1, offsets, 0, 4096, false};
  TileWalk walk(outputs);
  std::set<Index> rows, columns;
  for (Index tile = 32; tile < 48 && walk.move_to(tile); ++tile) {
    rows.insert(walk.origin().row);
    columns.insert(walk.origin().column);
  }
  EXPECT_EQ(rows.size(), 8u);
  EXPECT_EQ(columns.size(), 2u);
}

// ---- loads ----

struct LoadSizes {
  Index width, first_row, first, end, depth, step;
};
template <int extent, bool along_depth, bool by_index>
__global__ void load_expert_tile(In<bf16> values, In<std::int32_t> index, LoadSizes s, Out<bf16> result) {
  bf16* const tile = reinterpret_cast<bf16*>(dynamic_shared());
  const auto to = [&](int o, int d) -> bf16& {
    return tile[along_depth ? o * GroupedTile::depth + d : d * extent + o];
  };
  TileLoader<extent, along_depth, by_index> loader(values, index, s.width, static_cast<int>(threadIdx.x));
  loader.begin(s.first_row, s.first, s.end, s.depth);
  loader.load(s.step, to);
  wait_async();
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < extent * GroupedTile::depth; i += loading_threads)
    result[i] = to(i / GroupedTile::depth, i % GroupedTile::depth);
}

class ExpertLoads : public ExpertProductsTest {
 protected:
  // Loads a tile of an operand with `rows_of_operand` rows, and compares it with the operand.
  template <int extent, bool along_depth, bool by_index>
  void expect_tile(Index rows_of_operand, bool gathered, const LoadSizes& s) {
    Context& stream = context_of(*device);
    const View x = values({rows_of_operand, s.width}, 3), result = memory({extent, GroupedTile::depth}, DType::bf16);
    std::vector<std::int32_t> drawn(static_cast<std::size_t>(rows_of_operand));
    for (std::size_t r = 0; r < drawn.size(); ++r) drawn[r] = static_cast<std::int32_t>(r * 5 % drawn.size() / 2);
    const View by = upload(drawn);
    launch(stream, {.threads = loading_threads, .shared_bytes = extent * GroupedTile::depth * 2},
           load_expert_tile<extent, along_depth, by_index>, in<bf16>(x),
           gathered ? in<std::int32_t>(by) : In<std::int32_t>(), s, out<bf16>(result));
    device->synchronize();
    const std::vector<float> found = floats(result), from = floats(x);
    for (Index o = 0; o < extent; ++o)
      for (Index d = 0; d < GroupedTile::depth; ++d) {
        const Index at = s.step * GroupedTile::depth + d, row = s.first_row + (along_depth ? s.first + o : at),
                    column = along_depth ? at : s.first + o;
        const bool exists = s.first + o < s.end && at < s.depth;
        const float expected = exists ? from[(gathered ? drawn[row] : row) * s.width + column] : 0;
        ASSERT_EQ(found[o * GroupedTile::depth + d], expected) << o << " " << d << (gathered ? ", gathered" : "");
      }
  }
};

TEST_F(ExpertLoads, ReadRowsAlongTheDepth) {
  for (const bool gathered : {false, true}) {
    expect_tile<128, true, true>(300, gathered,
                                 {.width = 72, .first_row = 7, .first = 128, .end = 200, .depth = 72, .step = 1});
    expect_tile<128, true, true>(200, gathered,
                                 {.width = 128, .first_row = 0, .first = 0, .end = 130, .depth = 128, .step = 0});
  }
  // weights of the third expert of [4, 264, 72]
  expect_tile<256, true, false>(4 * 264, false,
                                {.width = 72, .first_row = 528, .first = 0, .end = 264, .depth = 72, .step = 0});
  expect_tile<256, true, false>(4 * 264, false,
                                {.width = 72, .first_row = 528, .first = 256, .end = 264, .depth = 72, .step = 1});
}

TEST_F(ExpertLoads, ReadRowsAcrossTheDepth) {
  for (const bool gathered : {false, true}) {
    expect_tile<128, false, true>(150, gathered,
                                  {.width = 264, .first_row = 9, .first = 256, .end = 264, .depth = 70, .step = 1});
    expect_tile<256, false, true>(150, gathered,
                                  {.width = 264, .first_row = 9, .first = 0, .end = 264, .depth = 130, .step = 2});
  }
  // weights of the second expert of [3, 72, 264]
  expect_tile<256, false, false>(3 * 72, false,
                                 {.width = 264, .first_row = 72, .first = 0, .end = 264, .depth = 72, .step = 1});
}

}  // namespace
}  // namespace sy::cuda
