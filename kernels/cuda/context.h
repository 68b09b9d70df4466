// One device as the host sees it: its compute stream, cuBLAS, and a workspace.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/device.h"

namespace sy::cuda {

// PCI address of a device as "0000:01:00": domain, bus and device.
std::string device_id(const cudaDeviceProp& properties);

class SideStreams;     // kernels/cuda/side_streams.h
class FusedAttention;  // kernels/cuda/fused_attention.h
class ExpertProducts;  // kernels/cuda/expert_products.h

struct Context {
  int device = 0;
  ComputeStream stream;             // all work of the device, in order
  cublasHandle_t cublas = nullptr;  // on the compute stream
  // Memory that the kernels of one operation share, such as partial sums. The next operation may
  // overwrite it.
  std::byte* workspace = nullptr;
  Index workspace_bytes = 0;  // workspace_size; an operation that needs more splits its work
  SideStreams* side_streams = nullptr;
  // Multiplications of the mean expert. Below small_product the GEMMs of all experts share one
  // grouped call. From large_product on they run one after the other. In between, they run
  // concurrently on side streams.
  Index small_product = 0, large_product = 0;
  Index multiprocessors = 1;                  // of the device; a result must not depend on it
  FusedAttention* fused_attention = nullptr;  // nullptr: the kernels of this project compute all
  ExpertProducts* expert_products = nullptr;  // nullptr: cuBLAS computes all
};
// The context of a device that make_cuda made.
Context& context_of(Device& device);

constexpr Index workspace_size = Index{64} << 20;
// An upper bound of the bytes that alignment adds to a few tensors of a workspace.
constexpr Index workspace_padding = 1024;

// Allocates tensors from the workspace for one operation. Throws if the workspace is too small:
// operations must split their work.
class Workspace {
 public:
  explicit Workspace(const Context& context) : context_(context) {}
  View take(Shape shape, DType dtype) {
    const Index bytes = (shape.elements() * size_of(dtype) + 255) / 256 * 256;
    SY_ASSERT(used_ + bytes <= context_.workspace_bytes, "{} bytes of workspace, {} used", bytes, used_);
    used_ += bytes;
    return {context_.workspace + used_ - bytes, shape, dtype};
  }

 private:
  const Context& context_;
  Index used_ = 0;
};

}  // namespace sy::cuda
