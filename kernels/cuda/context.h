// One device as the host sees it: its compute stream, cuBLAS, and memory that the kernels of one operation share.
#pragma once

#include "kernels/cuda/stream.h"

namespace sy::cuda {

// Where a device is plugged in, as "0000:01:00": PCI's domain, bus and device.
std::string device_id(const cudaDeviceProp& properties);

class Lanes;  // kernels/cuda/lanes.h

struct Context {
  int device = 0;
  ComputeStream stream;             // all that the backend computes, in order
  cublasHandle_t cublas = nullptr;  // on that stream
  // Memory for what one operation passes from kernel to kernel, such as partial sums. The next may overwrite it.
  std::byte* workspace = nullptr;
  Index workspace_bytes = 0;  // workspace_size; an operation that needs more splits its work
  Lanes* lanes = nullptr;
  // From so many multiplications of the mean expert on, each expert's product has a call of its own; smaller ones share one.
  Index large_product = 0;
  // If true, smaller products run beside each other on side streams instead, with a call each.
  bool small_on_streams = false;
  Index multiprocessors = 1;  // that the device has; a result must not depend on it
};
constexpr Index workspace_size = Index{64} << 20;

// Takes tensors from the workspace for one operation. Throws where that is too small: operations must split their work.
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
