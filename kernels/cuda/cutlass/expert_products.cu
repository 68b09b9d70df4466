// The kernel of the experts' products for compute capability 9.0. One launch computes the products
// of all experts.
//
// CUTLASS provides the layouts of shared memory, the barriers between warp groups and the loop of
// four-warp matrix instructions (wgmma). This file has the loads and the stores: CUTLASS's grouped
// kernels load by TMA, which gathers no rows on this architecture.
//
// A block has one warp group that loads and two that multiply. It computes several output tiles one
// after the other, and loads the next tile while it stores one. The loads are cp.async of 16 bytes.
//
// An expert's product of m x n outputs over q costs 2 m n q FLOPs. It reads 2 m n q (1 / 128 + 1 /
// 256) bytes, most of them from L2, and 4 bytes of index for each row of a gathered tile.
#include <cutlass/arch/barrier.h>
#include <cute/tensor.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/pipeline/pipeline.hpp>

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_loads.h"
#include "kernels/cuda/expert_products.h"

namespace sy::cuda {
namespace {

constexpr int multiplying_threads = 256, stages = 4;
// Number of later steps whose loads are in flight when a step is passed on. It is less than
// `stages` - 1, because the multiplying warp groups keep the step before their current one.
constexpr int steps_in_flight = 2;

// Types of a pass. In `a`, the summed dimension is contiguous except for wgrad; in `b`, only for
// fprop.
template <ExpertPass pass>
struct Types {
  static constexpr bool a_along_depth = pass != ExpertPass::wgrad, b_along_depth = pass == ExpertPass::fprop;
  using Output = std::conditional_t<pass == ExpertPass::wgrad, float, bf16>;
  using Tile =
      cute::Shape<cute::Int<GroupedTile::rows>, cute::Int<GroupedTile::columns>, cute::Int<GroupedTile::depth>>;
  using Row = cutlass::layout::RowMajor;
  using Column = cutlass::layout::ColumnMajor;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, cutlass::bfloat16_t,
      std::conditional_t<a_along_depth, Row, Column>, static_cast<int>(expert_row_multiple), cutlass::bfloat16_t,
      std::conditional_t<b_along_depth, Column, Row>, static_cast<int>(expert_row_multiple), float, Tile,
      cute::Shape<cute::_1, cute::_1, cute::_1>, cutlass::gemm::collective::StageCount<stages>,
      cutlass::gemm::KernelCpAsyncWarpSpecializedCooperative>::CollectiveOp;
  using Pipeline = typename Mainloop::MainloopPipeline;
  using State = typename Mainloop::PipelineState;
  static_assert(cute::size(typename Mainloop::TiledMma{}) == multiplying_threads);

  struct Shared {
    typename Mainloop::TensorStorage tensors;
    typename Mainloop::PipelineStorage pipeline;
  };
};

// First row of the matrix of an expert.
__device__ Index first_row(const ExpertOperand& rows, const GroupedOutputs& outputs, Index expert) {
  return rows.rows > 0 ? expert * rows.rows : outputs.offsets[expert];
}

// Sizes of the product of the expert of a tile.
struct Sizes {
  Index rows, columns, depth;
  __device__ Sizes(const ExpertProduct& p, const TileWalk& walk)
      : rows(p.outputs.rows > 0 ? p.outputs.rows : walk.owned()),
        columns(p.outputs.columns),
        depth(p.depth > 0 ? p.depth : walk.owned()) {}
  __device__ Index steps() const { return (depth + GroupedTile::depth - 1) / GroupedTile::depth; }
};

// The warp group that loads. A step is passed on after a fence, because the matrix instructions
// read shared memory through another path than the threads write it (PTX ISA, "Async proxy").
template <ExpertPass pass>
__device__ void load_tiles(const ExpertProduct& p, typename Types<pass>::Pipeline& pipeline,
                           typename Types<pass>::Shared& shared, int thread) {
  using T = Types<pass>;
  const auto to_a =
      cute::make_tensor(cute::make_smem_ptr(shared.tensors.smem_A.data()), typename T::Mainloop::SmemLayoutA{});
  const auto to_b =
      cute::make_tensor(cute::make_smem_ptr(shared.tensors.smem_B.data()), typename T::Mainloop::SmemLayoutB{});
  TileLoader<GroupedTile::rows, T::a_along_depth, true> a(static_cast<const bf16*>(p.a.values), p.a.index, p.a.width,
                                                          thread);
  TileLoader<GroupedTile::columns, T::b_along_depth, pass == ExpertPass::wgrad> b(static_cast<const bf16*>(p.b.values),
                                                                                  p.b.index, p.b.width, thread);
  typename T::State filled = cutlass::make_producer_start_state<typename T::Pipeline>(), passed = filled;
  int in_flight = 0;
  const auto pass_on = [&] {
    cutlass::arch::fence_view_async_shared();
    pipeline.producer_commit(passed);
    ++passed;
    --in_flight;
  };
  TileWalk walk(p.outputs);
  for (Index tile = blockIdx.x; walk.move_to(tile); tile += gridDim.x) {
    const TileOrigin& origin = walk.origin();
    const Sizes sizes(p, walk);
    a.begin(first_row(p.a, p.outputs, origin.expert), origin.row, sizes.rows, sizes.depth);
    b.begin(first_row(p.b, p.outputs, origin.expert), origin.column, sizes.columns, sizes.depth);
    for (Index step = 0; step < sizes.steps(); ++step) {
      pipeline.producer_acquire(filled);
      a.load(step, to_a(cute::_, cute::_, static_cast<int>(filled.index())));
      b.load(step, to_b(cute::_, cute::_, static_cast<int>(filled.index())));
      cute::cp_async_fence();
      ++filled;
      if (++in_flight > steps_in_flight) {
        cute::cp_async_wait<steps_in_flight>();
        pass_on();
      }
    }
  }
  cute::cp_async_wait<0>();
  while (in_flight > 0) pass_on();
}

// Stores a tile of sums. A thread has pairs of neighbouring columns.
template <class Output, class Sums, class Multiply>
__device__ void store_tile(const ExpertProduct& p, const TileOrigin& origin, const Sizes& sizes, const Sums& sums,
                           const Multiply& multiply, int thread) {
  const Out<Output> c = static_cast<Output*>(const_cast<void*>(p.c.values)) +
                        (first_row(p.c, p.outputs, origin.expert) + origin.row) * p.c.width + origin.column;
  const auto coordinates = multiply.get_slice(thread).partition_C(
      cute::make_identity_tensor(cute::Shape<cute::Int<GroupedTile::rows>, cute::Int<GroupedTile::columns>>{}));
#pragma unroll
  for (int i = 0; i < cute::size(sums); i += 2) {
    const int row = cute::get<0>(coordinates(i)), column = cute::get<1>(coordinates(i));
    if (origin.row + row >= sizes.rows || origin.column + column >= sizes.columns) continue;
    const Index at = row * p.c.width + column;
    float pair[] = {sums(i), sums(i + 1)};
    if constexpr (std::is_same_v<Output, float>) {
      if (p.accumulate) {
        Pack<float, 2> before = load<2>(c, at);
        pair[0] += before[0], pair[1] += before[1];
      }
      store(c, at, Pack<float, 2>{pair[0], pair[1]});
    } else {
      store(c, at, Pack<bf16, 2>{__float2bfloat16(pair[0]), __float2bfloat16(pair[1])});
    }
  }
}

// The warp groups that multiply.
template <ExpertPass pass>
__device__ void multiply_tiles(const ExpertProduct& p, typename Types<pass>::Pipeline& pipeline,
                               typename Types<pass>::Shared& shared, int thread) {
  using T = Types<pass>;
  typename T::Mainloop mainloop;
  typename T::Mainloop::TiledMma multiply;
  typename T::State state;
  TileWalk walk(p.outputs);
  for (Index tile = blockIdx.x; walk.move_to(tile); tile += gridDim.x) {
    const Sizes sizes(p, walk);
    const int steps = static_cast<int>(sizes.steps());
    auto sums = cute::partition_fragment_C(multiply, cute::take<0, 2>(typename T::Tile{}));
    if (steps > 0) {
      mainloop.mma(pipeline, state, sums, steps, thread, shared.tensors, {});
      mainloop.mma_tail(pipeline, state, steps);
      state.advance(steps);
    } else {  // an expert without rows: its gradient is zero
      cute::clear(sums);
    }
    store_tile<typename T::Output>(p, walk.origin(), sizes, sums, multiply, thread);
  }
}

template <ExpertPass pass>
__global__ void __launch_bounds__(loading_threads + multiplying_threads, 1)
    multiply_experts(const __grid_constant__ ExpertProduct p) {
  using T = Types<pass>;
  // Swizzled layouts begin at a multiple of 1024 bytes.
  extern __shared__ __align__(1024) unsigned char tile_memory[];
  typename T::Shared& shared = *reinterpret_cast<typename T::Shared*>(tile_memory);
  const int thread = static_cast<int>(threadIdx.x);
  const bool loads = thread < loading_threads;
  typename T::Pipeline::Params roles;
  roles.role = loads ? T::Pipeline::ThreadCategory::Producer : T::Pipeline::ThreadCategory::Consumer;
  roles.producer_arv_count = loading_threads;
  roles.consumer_arv_count = multiplying_threads;
  typename T::Pipeline pipeline(shared.pipeline, roles);
  __syncthreads();
  if (loads)
    load_tiles<pass>(p, pipeline, shared, thread);
  else
    multiply_tiles<pass>(p, pipeline, shared, thread - loading_threads);
}

class CutlassProducts final : public ExpertProducts {
 public:
  explicit CutlassProducts(Context& context) : context_(context) {}

  void run(const ExpertProduct& product) override {
    switch (product.pass) {
      case ExpertPass::fprop:
        return enqueue<ExpertPass::fprop>(product);
      case ExpertPass::dgrad:
        return enqueue<ExpertPass::dgrad>(product);
      case ExpertPass::wgrad:
        return enqueue<ExpertPass::wgrad>(product);
    }
  }

 private:
  template <ExpertPass pass>
  void enqueue(const ExpertProduct& product) {
    const Index blocks = std::min(max_tiles(product.outputs, product.total_rows), context_.multiprocessors);
    launch(context_,
           {.x = blocks,
            .threads = loading_threads + multiplying_threads,
            .shared_bytes = static_cast<Index>(sizeof(typename Types<pass>::Shared))},
           multiply_experts<pass>, product);
  }

  Context& context_;
};

}  // namespace

std::unique_ptr<ExpertProducts> make_expert_products(Context& context, const cudaDeviceProp& properties) {
  if (properties.major != 9 || properties.minor != 0) return nullptr;
  return std::make_unique<CutlassProducts>(context);
}

}  // namespace sy::cuda
