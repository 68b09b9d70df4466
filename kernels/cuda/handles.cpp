#include "kernels/cuda/handles.h"

#include <algorithm>

namespace sy::cuda {

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // reported here, so that no later call reports it
  fail("{}: {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code));
}

void check(cublasStatus_t code, const char* what) {
  if (code != CUBLAS_STATUS_SUCCESS) fail("{}: {}", what, cublasGetStatusString(code));
}

Owned<cudaStream_t> make_stream(int priority) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "cudaStreamCreate");
  return Owned<cudaStream_t>(stream);
}

Owned<cudaEvent_t> make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return Owned<cudaEvent_t>(event);
}

DeviceMemory device_memory(Index bytes) {
  void* memory = nullptr;
  const auto size = static_cast<std::size_t>(std::max<Index>(bytes, 1));
  if (cudaMalloc(&memory, size) != cudaSuccess) {
    cudaGetLastError();  // reported here, so that no later call reports it
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    no_memory("no memory on the GPU for {} bytes, {} of {} are free", bytes, free, total);
  }
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); }};
}

DeviceMemory pinned_memory(Index bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, bytes), "cudaMallocHost");
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFreeHost(p); }};
}

}  // namespace sy::cuda
