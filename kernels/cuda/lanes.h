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
constexpr std::size_t num_lanes = 4;
constexpr Index lane_workspace = Index{32} << 20;  // bytes; cuBLAS requires this size on Hopper

class Lanes {
 public:
  // Calls product(i, handle) for each i in [0, n), round-robin over the side streams. The calls run
  // after all work that is already enqueued on `stream`, and before all work that is enqueued
  // later.
  template <class Product>
  void run(ComputeStream& stream, Index n, Product product) {
    const Giving giving;
    const cudaStream_t whole = stream.cut();
    const std::size_t used = std::min(num_lanes, static_cast<std::size_t>(n));
    check(cudaEventRecord(given_.get(), whole), "cudaEventRecord");
    for (std::size_t l = 0; l < used; ++l)
      check(cudaStreamWaitEvent(lanes_[l].stream.get(), given_.get(), 0), "cudaStreamWaitEvent");
    for (Index i = 0; i < n; ++i) product(i, lanes_[static_cast<std::size_t>(i) % num_lanes].cublas.get());
    for (std::size_t l = 0; l < used; ++l) {
      check(cudaEventRecord(lanes_[l].done.get(), lanes_[l].stream.get()), "cudaEventRecord");
      check(cudaStreamWaitEvent(whole, lanes_[l].done.get(), 0), "cudaStreamWaitEvent");
    }
  }

 private:
  // Members are destroyed in reverse order: the stream last, because freeing memory waits for it.
  struct Lane {
    Owned<cudaStream_t> stream = make_stream();
    DeviceMemory workspace = device_memory(lane_workspace);
    Owned<cublasHandle_t> cublas = make_cublas(stream.get(), workspace.get(), lane_workspace);
    Owned<cudaEvent_t> done = make_event();
  };
  Owned<cudaEvent_t> given_ = make_event();
  std::array<Lane, num_lanes> lanes_;
};

}  // namespace sy::cuda
