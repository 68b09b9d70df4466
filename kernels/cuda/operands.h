// How a kernel reaches memory and how it is started: operands, packs, shared memory, launches. kernels/cuda/device.h
// includes it, and the host's stand-in for a device has another file of this name.
//
// A kernel takes its tensors as In<T> (read only) and Out<T> (written, and read where it accumulates), never as a raw
// pointer. It indexes them with 64 bits, and reaches them through x[i], x + n, load<N> and store<N> alone. It is
// started by launch(), so that every launch is checked in one place.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/tensor.h"

namespace sy::cuda {

using bf16 = __nv_bfloat16;

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

// N elements that are moved at once. Their size, sizeof(T) * N, is 2, 4, 8 or 16 bytes, and so is their alignment.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
  __device__ T& operator[](int i) { return values[i]; }
  __device__ const T& operator[](int i) const { return values[i]; }
};
// Elements [i, i + N) of x; i is a multiple of N, and x is aligned to the pack.
template <int N, class T>
__device__ Pack<T, N> load(const T* x, Index i) {
  return *reinterpret_cast<const Pack<T, N>*>(x + i);
}
template <int N, class T>
__device__ void store(T* y, Index i, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(y + i) = pack;
}
// Starts to copy elements [i, i + N) of x to y in shared memory, as load and store would. Where they are not `used`,
// they are not read and y becomes zero. The thread that starts the copy has the elements after wait_async(), and the
// other threads have them after a barrier behind that.
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

// ---- shared memory ----

// The bytes of shared memory that the launch asked for, aligned to 16.
__device__ inline std::byte* dynamic_shared() {
  extern __shared__ float4 shared_memory[];
  return reinterpret_cast<std::byte*>(shared_memory);
}

// 2^x with a relative error of about 2^-22, in one instruction; results below 2^-126 are zero.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- launches ----

struct Grid {
  Index x = 1, y = 1;      // blocks; where there are none, nothing is launched
  int threads = 256;       // of a block
  Index shared_bytes = 0;  // dynamic shared memory of a block
};
// Starts kernel(arguments...) on the context's compute stream.
template <class... Params, class... Args>
void launch(Context& context, const Grid& grid, void (*kernel)(Params...), Args... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
  SY_ASSERT(grid.x <= INT32_MAX && grid.y <= 65535, "a grid of {} x {} blocks", grid.x, grid.y);
  // More than 48 KiB must be asked for, and the shared memory that the kernel declares counts among them.
  if (grid.shared_bytes > 32 * 1024)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)),
          "cudaFuncSetAttribute");
  context.stream.put(
      [&](cudaStream_t stream) {
        kernel<<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)), grid.threads,
                 static_cast<std::size_t>(grid.shared_bytes), stream>>>(static_cast<Params>(arguments)...);
        check(cudaGetLastError(), "a kernel launch");
      },
      kernel, grid.x, grid.y, grid.threads, grid.shared_bytes, static_cast<Params>(arguments)...);
}

}  // namespace sy::cuda
