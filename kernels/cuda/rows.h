// Common forms of kernels: element-wise, or one block for each row. For .cu files alone.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/device.h"

namespace sy::cuda {

// Calls f(PackSize<n>{}). n is N if the rows of all operands, f32 or bf16, can be read in packs of
// N, otherwise 1. Empty operands are ignored.
template <int N, class F>
void with_packs(Index width, std::initializer_list<ConstView> operands, F f) {
  const bool packed = std::all_of(operands.begin(), operands.end(), [&](ConstView v) {
    return !v || (v.dtype() == DType::f32 ? aligned<float, N>(v, width) : aligned<bf16, N>(v, width));
  });
  packed ? f(PackSize<N>{}) : f(PackSize<1>{});
}
// The same for operands that all have the type of the first: calls f(T{},
// PackSize<n>{}). n is the number of elements in 16 bytes, or 1.
template <class F>
void with_type_and_packs(Index width, std::initializer_list<ConstView> operands, F f) {
  with_type(operands.begin()->dtype(),
            [&]<class T>(T zero) { with_packs<pack_size<T>>(width, operands, [&](auto n) { f(zero, n); }); });
}

// ---- elements ----

// Calls f.at<M>(i), which processes elements [i, i + M): whole packs of N, then single elements.
template <int N, class F>
__global__ void elements_kernel(Index n, F f) {
  const Index i = (Index{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (i + N <= n)
    f.template at<N>(i);
  else
    for (Index j = i; j < n; ++j) f.template at<1>(j);
}
// Launches f.at<M>(i) so that each of the elements [0, n) is processed once, 4 at a time if the
// operands are aligned.
template <class F>
void for_elements(Context& context, Index n, std::initializer_list<ConstView> operands, const F& f) {
  with_packs<4>(0, operands, [&]<int N>(PackSize<N>) {
    launch(context, {.x = blocks_of(n, Grid{}.threads * N)}, elements_kernel<N, F>, n, f);
  });
}

// ---- long sums ----

// Number of blocks that share a sum over many rows. It is the same on any device, because a sum
// must not depend on the number of multiprocessors. An H100 has 132 and runs all blocks at once if
// three fit on a multiprocessor.
constexpr Index sum_blocks = 384;

// Sums of columns: a block sums a chunk of rows in some columns.
constexpr int row_warps = 16;  // warps of a block, each of which takes every 16th row
constexpr int sum_threads = row_warps * warp_size;
// Returns the number of chunks of at least 128 rows, if there are any, so that about 1024 blocks
// share the sums. column_blocks: number of blocks side by side
inline Index row_chunks(Index rows, Index column_blocks) {
  return std::clamp<Index>(1024 / column_blocks, 1, std::max<Index>(1, rows / 128));
}

// ---- rows ----

// Number of threads of a block for a row of this many packs: whole warps, at least one. Every warp
// has work.
inline int row_threads(Index packs, int most = 256) {
  return static_cast<int>(std::clamp<Index>(blocks_of(packs, warp_size) * warp_size, warp_size, most));
}
// Calls f(i) for each pack of N elements at i in [0, width); the block's threads share the packs.
template <int N, class F>
__device__ void for_row(Index width, F f) {
  for (Index i = Index{threadIdx.x} * N; i < width; i += Index{blockDim.x} * N) f(i);
}

// One block adds numbers: [n] to total: [1], as Sum.
template <class T, class Sum>
__global__ void add_sum(Index n, In<T> numbers, Out<T> total) {
  Sum sum = 0;
  for_row<1>(n, [&](Index i) { sum += static_cast<Sum>(numbers[i]); });
  sum = block_sum(sum);
  if (threadIdx.x == 0) total[0] = static_cast<T>(static_cast<Sum>(total[0]) + sum);
}

// sums: [N] f32 += the sums of the columns of x: [R, N] f32 or bf16, in a fixed order. Many rows
// require some of the workspace. An element of x costs w bytes and 1 FLOP.
void add_column_sums(Context& context, Workspace& workspace, ConstView x, View sums);

}  // namespace sy::cuda
