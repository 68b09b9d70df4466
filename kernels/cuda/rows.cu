#include "kernels/cuda/rows.h"

namespace sy::cuda {

namespace {

// A block sums a chunk of rows, those from chunk * blockIdx.y on, in 32 * N columns. A lane sums N
// columns, and the warps' sums are added in order. total: [gridDim.y, width] = the sums, or += the
// sums. An element of x costs w bytes and 1 FLOP.
template <class T, int N>
__global__ void __launch_bounds__(sum_threads)
    sum_columns(Index rows, Index width, Index chunk, bool accumulate, In<T> x, Out<float> total) {
  __shared__ float sums[row_warps][N][warp_size];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  const Index column = (Index{blockIdx.x} * warp_size + lane) * N, begin = blockIdx.y * chunk;
  const Index end = begin + chunk < rows ? begin + chunk : rows;
  float sum[N] = {};
  if (column < width)
    for (Index row = begin + warp; row < end; row += row_warps) {
      const auto pack = load<N>(x, row * width + column);
      for (int e = 0; e < N; ++e) sum[e] += to_float(pack[e]);
    }
  for (int e = 0; e < N; ++e) sums[warp][e][lane] = sum[e];
  __syncthreads();
  if (warp >= N || column >= width) return;
  float all = 0;
  for (int w = 0; w < row_warps; ++w) all += sums[w][warp][lane];
  const Index i = blockIdx.y * width + column + warp;
  total[i] = accumulate ? total[i] + all : all;
}

template <class T, int N>
void launch_sums(Context& context, ConstView x, Index chunks, bool accumulate, View total) {
  const Index rows = x.dim(0), width = x.dim(1);
  launch(context, {.x = blocks_of(width, N * warp_size), .y = chunks, .threads = sum_threads}, sum_columns<T, N>, rows,
         width, blocks_of(rows, chunks), accumulate, x, total);
}

}  // namespace

// Many rows are summed in chunks first, because the warps of one block would take long.
void add_column_sums(Context& context, Workspace& workspace, ConstView x, View sums) {
  constexpr Index max_direct_rows = 1024;
  const Index rows = x.dim(0), width = x.dim(1);
  with_type_and_packs(width, {x}, [&]<class T, int N>(T, PackSize<N>) {
    if (rows <= max_direct_rows) return launch_sums<T, 1>(context, x, 1, true, sums);
    const Index chunks = row_chunks(rows, blocks_of(width, N * warp_size));
    const View partial = workspace.take({chunks, width}, DType::f32);
    launch_sums<T, N>(context, x, chunks, false, partial);
    launch_sums<float, 1>(context, partial, 1, true, sums);
  });
}

}  // namespace sy::cuda
