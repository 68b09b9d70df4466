// Tools of the kernels: operands and launches (operands.h), conversions, reductions, dispatch by
// type. Included by .cu files alone.
//
// The comment of every kernel states the cost of one element, so that a reader can compute its
// share of the roofline:
//   * Bytes that are read from or written to device memory, once each. w is the size of an operand
//     marked c (2 for bf16, 4 for f32). Repeated reads of a block hit a cache and do not count.
//   * FLOPs. A multiply-add counts as two; a division, a root, an exponential or another function
//     as one; a comparison as zero.
//
// An H100 (SXM) moves 3.35 TB/s. It computes 67 TFLOP/s in f32, and 989 TFLOP/s in bf16 on its
// tensor cores. So an f32 kernel of fewer than 20 FLOPs per byte is bound by memory.
#pragma once

#include <type_traits>

#include "kernels/cuda/operands.h"

namespace sy::cuda {

constexpr int warp_size = 32;

// Number of elements in 16 bytes.
template <class T>
constexpr int pack_size = 16 / static_cast<int>(sizeof(T));
// Number of elements of a pack, as an argument that is a compile-time constant.
template <int N>
using PackSize = std::integral_constant<int, N>;

// Whether v, as rows of `width` elements, can be read in packs of N.
template <class T, int N>
bool aligned(ConstView v, Index width) {
  return reinterpret_cast<std::uintptr_t>(v.bytes()) % (sizeof(T) * N) == 0 && width % N == 0;
}

// ---- numbers ----

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(bf16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return __float2bfloat16(x);
}

// A pack of f(0), ..., f(N - 1), each rounded to T.
template <class T, int N, class F>
__device__ Pack<T, N> pack_of(F f) {
  Pack<T, N> pack;
  for (int e = 0; e < N; ++e) pack[e] = from_float<T>(f(e));
  return pack;
}

// ---- reductions ----
// All threads of the warp, or of the block, must call these functions, and all get the result. Sums
// have a fixed order.

template <class T>
__device__ T warp_sum(T x) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}
// The block must be one-dimensional and a whole number of warps.
template <class T>
__device__ static T block_sum(T x) {
  __shared__ T partial[warp_size];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size, warps = blockDim.x / warp_size;
  x = warp_sum(x);
  __syncthreads();  // an earlier call's partial sums have been read
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? partial[lane] : T{});
}
__device__ static inline float block_max(float x) {
  __shared__ float partial[warp_size];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size, warps = blockDim.x / warp_size;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_max(lane < warps ? partial[lane] : partial[0]);
}

// Returns the first index in [low, high) without a property, or `high`. All indices with it come
// first.
template <class Int, class Property>
__device__ Int partition_point(Int low, Int high, Property has_property) {
  while (low < high) {
    const Int middle = (low + high) / 2;
    if (has_property(middle))
      low = middle + 1;
    else
      high = middle;
  }
  return high;
}

constexpr Index blocks_of(Index n, Index per_block) {
  return (n + per_block - 1) / per_block;
}

// Calls f with the flag as a compile-time constant.
template <class F>
void with_flag(bool flag, F f) {
  flag ? f(std::true_type{}) : f(std::false_type{});
}
// Calls f(T{}), where T is the C++ type of an operand's elements, f32 or bf16.
template <class F>
void with_type(DType type, F f) {
  switch (type) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    default:
      SY_ASSERT(false, "no kernels for {}", info(type).name);
  }
}

}  // namespace sy::cuda
