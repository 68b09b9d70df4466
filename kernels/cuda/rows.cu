#include "kernels/cuda/rows.h"

namespace sy::cuda {

namespace {

constexpr int walkers = 16;  // warps of a block, each of which takes every 16th row
constexpr int walking_threads = walkers * warp_size;

// A block sums a chunk of rows, those from run * blockIdx.y on, in 32 * N columns. A lane sums N
// columns, and the warps' sums are added in order. total: [gridDim.y, width] = the sums, or += the
// sums. An element of x costs w bytes and 1 FLOP.
template <class T, int N>
__global__ void __launch_bounds__(walking_threads)
    sum_columns(Index rows, Index width, Index run, bool accumulate, In<T> x, Out<float> total) {
  __shared__ float sums[walkers][N][warp_size];
  const int walker = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  const Index column = (Index{blockIdx.x} * warp_size + lane) * N, begin = blockIdx.y * run;
  const Index end = begin + run < rows ? begin + run : rows;
  float sum[N] = {};
  if (column < width)
    for (Index row = begin + walker; row < end; row += walkers) {
      const auto pack = load<N>(x, row * width + column);
      for (int e = 0; e < N; ++e) sum[e] += to_float(pack[e]);
    }
  for (int e = 0; e < N; ++e) sums[walker][e][lane] = sum[e];
  __syncthreads();
  if (walker >= N || column >= width) return;
  float all = 0;
  for (int w = 0; w < walkers; ++w) all += sums[w][walker][lane];
  const Index i = blockIdx.y * width + column + walker;
  total[i] = accumulate ? total[i] + all : all;
}

template <class T, int N>
void launch_sums(Context& context, ConstView x, Index runs, bool accumulate, View total) {
  const Index rows = x.dim(0), width = x.dim(1);
  launch(context, {.x = blocks_of(width, N * warp_size), .y = runs, .threads = walking_threads}, sum_columns<T, N>,
         rows, width, blocks_of(rows, runs), accumulate, in<T>(x), out<float>(total));
}

}  // namespace

// Many rows are summed in chunks first, because the warps of one block would take long.
void add_column_sums(Context& context, Workspace& workspace, ConstView x, View sums) {
  constexpr Index few = 1024, least_run = 128, blocks = 1024;
  const Index rows = x.dim(0), width = x.dim(1);
  with_type_and_packs(width, {x}, [&](auto zero, auto packs) {
    using T = decltype(zero);
    if (rows <= few) return launch_sums<T, 1>(context, x, 1, true, sums);
    constexpr int N = packs;
    const Index runs = std::clamp<Index>(blocks / blocks_of(width, N * warp_size), 1, rows / least_run);
    const View partial = workspace.take({runs, width}, DType::f32);
    launch_sums<T, N>(context, x, runs, false, partial);
    launch_sums<float, 1>(context, partial, 1, true, sums);
  });
}

}  // namespace sy::cuda
