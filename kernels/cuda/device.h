// What the kernels are written with: operands, launches, conversions and reductions. Included by .cu files alone.
//
// A kernel takes its tensors as In<T> (read only) and Out<T> (written, and read where it accumulates), never as a raw
// pointer, indexes them with 64 bits, and reaches them through x[i], x + n, load<N> and store<N> alone. It starts through
// launch(), so that every launch is checked in one place.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/context.h"
#include "kernels/tensor.h"

namespace sy::cuda {

using bf16 = __nv_bfloat16;

constexpr int warp_size = 32;

// ---- operands ----

template <class T>
using In = const T* __restrict__;
template <class T>
using Out = T*;

// The elements of a view as T; null where the view is none.
template <class T>
const T* in(ConstView v) {
  return reinterpret_cast<const T*>(v.bytes());
}
template <class T>
Out<T> out(View v) {
  return reinterpret_cast<T*>(v.bytes());
}

// N elements that are moved at once: sizeof(T) * N is 4, 8 or 16 bytes, and so is their alignment.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
  __device__ T& operator[](int i) { return values[i]; }
  __device__ const T& operator[](int i) const { return values[i]; }
};
// As many elements as 16 bytes hold.
template <class T>
constexpr int pack_size = 16 / static_cast<int>(sizeof(T));

// Elements [i, i + N) of x; i is a multiple of N, and x is aligned to the pack.
template <int N, class T>
__device__ Pack<T, N> load(const T* x, Index i) {
  return *reinterpret_cast<const Pack<T, N>*>(x + i);
}
template <int N, class T>
__device__ void store(T* y, Index i, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(y + i) = pack;
}
// Starts to copy elements [i, i + N) of x to y in shared memory, as load and store would; where they are not `used` they are
// not read, and y becomes zero. The thread that started it has them after wait_async(), the others after a barrier behind
// that.
template <int N, class T>
__device__ void load_async(T* y, const T* x, Index i, bool used = true) {
  constexpr int bytes = sizeof(T) * N;
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(y));
  const int read = used ? bytes : 0;
  if constexpr (bytes == 16)  // not through L1
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(x + i), "r"(read) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(x + i), "n"(bytes), "r"(read)
                 : "memory");
}
// Waits for all copies that this thread has started.
__device__ inline void wait_async() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// Whether every row of rows of `width` elements, from v's first on, can be read in packs of N.
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
// 2^x to about 2^-22 of it; less than 2^-126 is zero. One instruction.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- within a warp and a block ----
// All threads of the warp, or of the block, take part, and all get the result. Sums are taken in a fixed order.

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
// The block is one-dimensional and a whole number of warps.
template <class T>
__device__ T block_sum(T x) {
  __shared__ T partial[warp_size];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size, warps = blockDim.x / warp_size;
  x = warp_sum(x);
  __syncthreads();  // an earlier call's partial sums have been read
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? partial[lane] : T{});
}
__device__ inline float block_max(float x) {
  __shared__ float partial[warp_size];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size, warps = blockDim.x / warp_size;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_max(lane < warps ? partial[lane] : partial[0]);
}

// The bytes of shared memory that the launch asked for, aligned to 16.
__device__ inline std::byte* dynamic_shared() {
  extern __shared__ float4 shared_memory[];
  return reinterpret_cast<std::byte*>(shared_memory);
}

// ---- launches ----

struct Grid {
  Index x = 1, y = 1;      // blocks; none: nothing is launched
  int threads = 256;       // of a block
  Index shared_bytes = 0;  // dynamic shared memory of a block
};
constexpr Index blocks_of(Index n, Index per_block) {
  return (n + per_block - 1) / per_block;
}

// Starts kernel(arguments...) on the context's compute stream.
template <class... Params, class... Args>
void launch(Context& context, const Grid& grid, void (*kernel)(Params...), Args... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
  SY_ASSERT(grid.x <= INT32_MAX && grid.y <= 65535, "a grid of {} x {} blocks", grid.x, grid.y);
  if (grid.shared_bytes > 48 * 1024)  // more than that must be asked for
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)),
          "cudaFuncSetAttribute");
  kernel<<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)), grid.threads,
           static_cast<std::size_t>(grid.shared_bytes), context.stream>>>(static_cast<Params>(arguments)...);
  check(cudaGetLastError(), "a kernel launch");
}

// Calls f(T{}) for the T of an operand's type: f32 or bf16.
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
