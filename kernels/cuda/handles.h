// CUDA objects with owners, and checks of the results of CUDA calls.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <memory>
#include <type_traits>

#include "kernels/tensor.h"

namespace sy::cuda {

// Throws Failure, which names the call, if the code is an error.
void check(cudaError_t code, const char* what);
void check(cublasStatus_t code, const char* what);

struct Destroy {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  void operator()(cublasHandle_t handle) const { cublasDestroy(handle); }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

// A stream that does not wait for the null stream. A priority below 0 runs its work first.
Owned<cudaStream_t> make_stream(int priority = 0);
Owned<cudaEvent_t> make_event();

// Throws Failure, which says how many bytes were requested and how many are free.
DeviceMemory device_memory(Index bytes);
DeviceMemory pinned_memory(Index bytes);

}  // namespace sy::cuda
