// The shapes that most kernels share: one that treats all elements alike, and a block that walks along a row.
// Included by .cu files alone.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/device.h"

namespace sy::cuda {

// Calls f(std::integral_constant<int, n>): n is N where the rows of all operands, f32 or bf16, can be read in packs of N,
// otherwise 1. Operands that are none do not count.
template <int N, class F>
void with_packs(Index width, std::initializer_list<ConstView> operands, F f) {
  const bool packed = std::all_of(operands.begin(), operands.end(), [&](ConstView v) {
    return !v || (v.dtype() == DType::f32 ? aligned<float, N>(v, width) : aligned<bf16, N>(v, width));
  });
  packed ? f(std::integral_constant<int, N>{}) : f(std::integral_constant<int, 1>{});
}
// As with_packs, for operands that all have the type of the first: calls f(T{}, std::integral_constant<int, n>), n as
// many as 16 bytes hold or 1.
template <class F>
void with_type_and_packs(Index width, std::initializer_list<ConstView> operands, F f) {
  with_type(operands.begin()->dtype(),
            [&](auto zero) { with_packs<pack_size<decltype(zero)>>(width, operands, [&](auto n) { f(zero, n); }); });
}

// ---- elements ----

// f.at<M>(i) treats elements [i, i + M): whole packs of N, and what is left one by one.
template <int N, class F>
__global__ void elements_kernel(Index n, F f) {
  const Index i = (Index{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (i + N <= n)
    f.template at<N>(i);
  else
    for (Index j = i; j < n; ++j) f.template at<1>(j);
}
// Calls f.at<M>(i) on the device so that all elements [0, n) are treated once, 4 at a time where the operands allow it.
template <class F>
void for_elements(Context& context, Index n, std::initializer_list<ConstView> operands, const F& f) {
  with_packs<4>(0, operands, [&](auto packs) {
    constexpr int N = packs;
    const Grid grid;
    launch(context, {.x = blocks_of(n, grid.threads * N)}, elements_kernel<N, F>, n, f);
  });
}

// ---- rows ----

// Threads of a block for a row of so many packs: whole warps, at least one, no more than have work.
inline int row_threads(Index packs, int most = 256) {
  return static_cast<int>(std::clamp<Index>(blocks_of(packs, warp_size) * warp_size, warp_size, most));
}
// Calls f(i) for the packs of N elements i, i + 1, ... of [0, width), which the block's threads share.
template <int N, class F>
__device__ void for_row(Index width, F f) {
  for (Index i = Index{threadIdx.x} * N; i < width; i += Index{blockDim.x} * N) f(i);
}

// sums: [N] f32 += the sums of the columns of x: [R, N] f32 or bf16, in a fixed order. Many rows need some memory.
void add_column_sums(Context& context, Workspace& workspace, ConstView x, View sums);

}  // namespace sy::cuda
