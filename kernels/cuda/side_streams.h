// Side streams for GEMMs that are independent and too small to fill a device. Each has its own
// cuBLAS handle and workspace. So results do not depend on concurrent work (cuBLAS library
// documentation, "Results Reproducibility").
#pragma once

#include <algorithm>
#include <array>

#include "kernels/cuda/stream.h"

namespace sy::cuda {

// A cuBLAS handle on a stream, with its workspace and the math mode of all GEMMs.
Owned<cublasHandle_t> make_cublas(cudaStream_t stream, std::byte* workspace, Index bytes);

// Number of side streams: the GEMMs of narrow experts fill a quarter of a device or less. Chosen
// without a GPU.
constexpr std::size_t num_side_streams = 4;
// In bytes; cuBLAS requires this size on Hopper.
constexpr Index side_stream_workspace = Index{32} << 20;

class SideStreams {
 public:
  // Calls product(i, handle) for each i in [0, n), round-robin over the side streams. The calls run
  // after all work that is already enqueued on `stream`, and before all work that is enqueued
  // later.
  template <class Product>
  void run(ComputeStream& stream, Index n, Product product) {
    const EnqueueScope enqueue_scope(stream.blocked());
    const cudaStream_t main = stream.end_capture();
    const std::size_t used = std::min(num_side_streams, static_cast<std::size_t>(n));
    check(cudaEventRecord(fork_.get(), main), "cudaEventRecord");
    for (std::size_t l = 0; l < used; ++l)
      check(cudaStreamWaitEvent(streams_[l].stream.get(), fork_.get(), 0), "cudaStreamWaitEvent");
    for (Index i = 0; i < n; ++i) product(i, streams_[static_cast<std::size_t>(i) % num_side_streams].cublas.get());
    for (std::size_t l = 0; l < used; ++l) {
      check(cudaEventRecord(streams_[l].done.get(), streams_[l].stream.get()), "cudaEventRecord");
      check(cudaStreamWaitEvent(main, streams_[l].done.get(), 0), "cudaStreamWaitEvent");
    }
  }

 private:
  // Members are destroyed in reverse order: the stream last, because freeing memory waits for it.
  struct SideStream {
    Owned<cudaStream_t> stream = make_stream();
    DeviceMemory workspace = device_memory(side_stream_workspace);
    Owned<cublasHandle_t> cublas = make_cublas(stream.get(), workspace.get(), side_stream_workspace);
    Owned<cudaEvent_t> done = make_event();
  };
  Owned<cudaEvent_t> fork_ = make_event();
  std::array<SideStream, num_side_streams> streams_;
};

}  // namespace sy::cuda
