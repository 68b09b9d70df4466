// Access of kernels to memory: operands, packs, shared memory, launches. kernels/cuda/device.h
// includes this file. The CUDA emulator on the host has another file of this name.
//
// A kernel takes its tensors as In<T> (read only) and Out<T> (written, and read if it accumulates),
// never as a raw pointer. It indexes them with 64 bits, and accesses them only by x[i], x + n,
// load<N> and store<N>. Only launch() starts a kernel, so that every launch is checked in one
// function.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/context.h"
#include "kernels/tensor.h"

namespace sy::cuda {

using bf16 = __nv_bfloat16;

// ---- operands ----

template <class T>
using In = const T* __restrict__;
template <class T>
using Out = T*;

// Elements of a view as T; nullptr if the view is empty.
template <class T>
const T* in(ConstView v) {
  return reinterpret_cast<const T*>(v.bytes());
}
template <class T>
Out<T> out(View v) {
  return reinterpret_cast<T*>(v.bytes());
}

// N elements that are moved at once. Their size, sizeof(T) * N, is 2, 4, 8 or 16 bytes, and equals
// their alignment.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
  __device__ T& operator[](int i) { return values[i]; }
  __device__ const T& operator[](int i) const { return values[i]; }
};
// Elements [i, i + N) of x. Index i is a multiple of N, and x is aligned to the pack.
template <int N, class T>
__device__ Pack<T, N> load(const T* x, Index i) {
  return *reinterpret_cast<const Pack<T, N>*>(x + i);
}
template <int N, class T>
__device__ void store(T* y, Index i, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(y + i) = pack;
}
// Starts an asynchronous copy of elements [i, i + N) of x to y in shared memory. Alignment: as for
// load and store. If `used` is false, x is not read and y becomes zero. The starting thread sees
// the elements after wait_async(), the other threads after a later barrier.
template <int N, class T>
__device__ void load_async(T* y, const T* x, Index i, bool used = true) {
  constexpr int bytes = sizeof(T) * N;
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(y));
  const int read = used ? bytes : 0;
  if constexpr (bytes == 16)  // bypasses L1
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

// Dynamic shared memory of the launch, aligned to 16 bytes.
__device__ inline std::byte* dynamic_shared() {
  extern __shared__ float4 shared_memory[];
  return reinterpret_cast<std::byte*>(shared_memory);
}

// 2^x with a relative error of about 2^-22, in one instruction. Results below 2^-126 are zero.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- launches ----

struct Grid {
  Index x = 1, y = 1;      // blocks; 0: nothing is launched
  int threads = 256;       // per block
  Index shared_bytes = 0;  // dynamic shared memory per block
};
// The argument of a kernel's parameter. A view becomes an In or an Out.
template <class Param, class Argument>
Param argument_as(const Argument& x) {
  if constexpr (!std::is_pointer_v<Param> || !std::is_convertible_v<Argument, ConstView>)
    return static_cast<Param>(x);
  else if constexpr (std::is_const_v<std::remove_pointer_t<Param>>)
    return in<std::remove_const_t<std::remove_pointer_t<Param>>>(x);
  else
    return out<std::remove_pointer_t<Param>>(x);
}
// Enqueues kernel(arguments...) on the context's compute stream. An argument of an In or an Out may
// be a view.
template <class... Params, class... Args>
void launch(Context& context, const Grid& grid, void (*kernel)(Params...), Args... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
  SY_ASSERT(grid.x <= INT32_MAX && grid.y <= 65535, "a grid of {} x {} blocks", grid.x, grid.y);
  // More than 48 KiB requires this attribute. Shared memory that the kernel declares counts, too.
  if (grid.shared_bytes > 32 * 1024)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)),
          "cudaFuncSetAttribute");
  context.stream.enqueue(
      [&](cudaStream_t stream) {
        kernel<<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)), grid.threads,
                 static_cast<std::size_t>(grid.shared_bytes), stream>>>(argument_as<Params>(arguments)...);
        check(cudaGetLastError(), "a kernel launch");
      },
      kernel, grid.x, grid.y, grid.threads, grid.shared_bytes, argument_as<Params>(arguments)...);
}

}  // namespace sy::cuda
