// The CUDA runtime of the CUDA emulator: the functions that Switchyard uses, on the host.
//
// It compiles .cu files as C++ and runs them without a GPU. Memory, streams, events and copies
// behave as host/memory.h and host/order.h say; host/block.h runs the blocks of a launch. Functions
// that access memory take their call site as the last parameter, which reports name.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>

#include "host/block.h"

// ---- the language ----

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
// The alignment of a kernel marks that it has launch bounds: run_grid checks it (host/block.h).
#define __launch_bounds__(...) __attribute__((aligned(sy::cuda_host::bounded_kernel)))
#define __align__(n) __attribute__((aligned(n)))
// One block runs at a time, so its shared memory may be static. It has its own section, so that
// every launch begins with garbage there. Kernels must be in an unnamed namespace: GCC puts
// variables that several files share elsewhere, and then reports a "section type conflict". The
// alignment goes first: alignas(16) __shared__ float x[4].
#define __shared__ static __attribute__((section("sy_shared"), used))

struct alignas(8) float2 {
  float x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline int2 make_int2(int x, int y) {
  return {x, y};
}
inline int4 make_int4(int x, int y, int z, int w) {
  return {x, y, z, w};
}

constexpr int warpSize = 32;

// ---- within a block ----

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  sy::cuda_host::block_barrier(where);
}

template <class T>
T __shfl_sync(unsigned mask, T x, int source, int width = 32,
              std::source_location where = std::source_location::current()) {
  const sy::cuda_host::Exchange<T> shares(mask, x, where);
  const int lane = sy::cuda_host::lane();
  return shares[lane / width * width + (source & (width - 1))];
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int lane_mask, int width = 32,
                  std::source_location where = std::source_location::current()) {
  const sy::cuda_host::Exchange<T> shares(mask, x, where);
  const int lane = sy::cuda_host::lane(), source = lane ^ lane_mask;
  return shares[source < (lane / width + 1) * width ? source : lane];
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, unsigned distance, int width = 32,
                 std::source_location where = std::source_location::current()) {
  const sy::cuda_host::Exchange<T> shares(mask, x, where);
  const int lane = sy::cuda_host::lane(), source = lane - static_cast<int>(distance);
  return shares[source >= lane / width * width ? source : lane];
}
template <class T>
T __shfl_down_sync(unsigned mask, T x, unsigned distance, int width = 32,
                   std::source_location where = std::source_location::current()) {
  const sy::cuda_host::Exchange<T> shares(mask, x, where);
  const int lane = sy::cuda_host::lane(), source = lane + static_cast<int>(distance);
  return shares[source < (lane / width + 1) * width ? source : lane];
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              std::source_location where = std::source_location::current()) {
  const sy::cuda_host::Exchange<bool> shares(mask, predicate != 0, where);
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) && shares[lane]) result |= 1u << lane;
  return result;
}
inline int __any_sync(unsigned mask, int predicate, std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) == mask;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T x, std::source_location where = std::source_location::current()) {
  const sy::cuda_host::Exchange<T> shares(mask, x, where);
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) && shares[lane] == x) result |= 1u << lane;
  return result;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, std::source_location where = std::source_location::current()) {
  const sy::cuda_host::Exchange<char> shares(mask, 0, where);
}

// Atomics on integers in shared memory. One thread runs at a time. Floats have no atomics: their
// sums would depend on the order of the threads.
#define SY_ATOMIC(name, T, result) \
  inline T name(T* address, T x) { \
    const T old = *address;        \
    *address = (result);           \
    return old;                    \
  }
#define SY_ATOMICS(T)                       \
  SY_ATOMIC(atomicAdd, T, old + x)          \
  SY_ATOMIC(atomicSub, T, old - x)          \
  SY_ATOMIC(atomicMax, T, std::max(old, x)) \
  SY_ATOMIC(atomicMin, T, std::min(old, x)) \
  SY_ATOMIC(atomicOr, T, old | x)           \
  SY_ATOMIC(atomicAnd, T, old& x)           \
  SY_ATOMIC(atomicXor, T, old ^ x)          \
  SY_ATOMIC(atomicExch, T, x)
SY_ATOMICS(int)
SY_ATOMICS(unsigned)
SY_ATOMICS(unsigned long long)
#undef SY_ATOMICS
#undef SY_ATOMIC

// ---- arithmetic ----

inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline double rsqrt(double x) {
  return 1.0 / std::sqrt(x);
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __logf(float x) {
  return std::log(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __saturatef(float x) {
  return x > 0 ? std::min(x, 1.0f) : 0.0f;
}
#define SY_MIN_MAX(T)      \
  inline T min(T a, T b) { \
    return std::min(a, b); \
  }                        \
  inline T max(T a, T b) { \
    return std::max(a, b); \
  }
SY_MIN_MAX(int)
SY_MIN_MAX(unsigned)
SY_MIN_MAX(long)
SY_MIN_MAX(unsigned long)
SY_MIN_MAX(long long)
SY_MIN_MAX(unsigned long long)
#undef SY_MIN_MAX
inline float min(float a, float b) {
  return std::fmin(a, b);
}
inline float max(float a, float b) {
  return std::fmax(a, b);
}
inline double min(double a, double b) {
  return std::fmin(a, b);
}
inline double max(double a, double b) {
  return std::fmax(a, b);
}

// ---- the runtime's functions (runtime.cpp) ----

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorIllegalState = 401,
  cudaErrorNotReady = 600,
};
const char* cudaGetErrorName(cudaError_t code);
const char* cudaGetErrorString(cudaError_t code);
cudaError_t cudaGetLastError();

struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem, sharedMemPerBlockOptin;
  int major, minor, multiProcessorCount, pciDomainID, pciBusID, pciDeviceID;
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
#define __CUDA_ARCH_LIST__ 900
struct cudaFuncAttributes {
  int binaryVersion;
};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);

using cudaStream_t = sy::cuda_host::Stream*;
using cudaEvent_t = sy::cuda_host::Event*;
using cudaGraph_t = sy::cuda_host::Graph*;
using cudaGraphExec_t = sy::cuda_host::GraphExec*;
constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, std::size_t bytes);
cudaError_t cudaFreeHost(void* memory);
template <class T>
cudaError_t cudaMalloc(T** memory, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(memory), bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** memory, std::size_t bytes) {
  return cudaMallocHost(reinterpret_cast<void**>(memory), bytes);
}

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                            std::source_location where = std::source_location::current());
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream,
                              std::source_location where = std::source_location::current());
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream,
                            std::source_location where = std::source_location::current());
