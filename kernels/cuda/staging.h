// Copies between the host and the device through pinned memory.
#pragma once

#include <array>

#include "kernels/cuda/stream.h"

namespace sy::cuda {

// Copies between pageable host memory and the device, in order on a stream, through a ring of
// pinned buffers. to_device returns when the bytes are in the ring. It waits only for buffers whose
// copies are still in flight.
class Staging {
 public:
  explicit Staging(ComputeStream& stream);
  void to_device(const void* host, std::byte* device, Index bytes);
  void to_host(const std::byte* device, void* host, Index bytes);

 private:
  static constexpr int num_buffers = 16;
  static constexpr Index buffer_bytes = Index{1} << 20;

  std::byte* buffer(int i) const { return memory_.get() + i * buffer_bytes; }
  // Moves to the next buffer when no copy uses it. Records the event of the previous buffer, which
  // completes with its copies.
  void next_buffer();

  ComputeStream& stream_;
  DeviceMemory memory_;
  std::array<Owned<cudaEvent_t>, num_buffers> events_;
  int current_ = 0;
  Index used_ = 0;  // bytes of the current buffer
};

}  // namespace sy::cuda
