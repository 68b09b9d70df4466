// Streams beside the compute stream, for products that do not wait for each other and fill no device alone. Each has a cuBLAS
// handle and a workspace of its own: so what they give does not depend on what runs at once (cuBLAS library
// documentation, "Results Reproducibility").
#pragma once

#include <algorithm>
#include <array>

#include "kernels/cuda/stream.h"

namespace sy::cuda {

// A handle on a stream, with the workspace and the way of summing that all products have.
Owned<cublasHandle_t> make_cublas(cudaStream_t stream, std::byte* workspace, Index bytes);

// How many: the products of narrow experts fill a quarter of a device or less. Chosen without a GPU.
constexpr std::size_t num_lanes = 4;
constexpr Index lane_workspace = Index{32} << 20;  // bytes, what cuBLAS asks for on Hopper

class Lanes {
 public:
  // Calls product(i, handle) for each i in [0, n): on the lanes in turn, behind all that `stream` has been given. What it
  // is given from now on comes behind all of them.
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
  // Members are freed in reverse order: the stream last, for which freeing memory waits.
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
