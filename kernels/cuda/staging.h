// How the host waits for the device, and the pinned memory through which bytes pass between them.
#pragma once

#include <array>
#include <functional>

#include "kernels/cuda/stream.h"

namespace sy::cuda {

// Makes every wait of the host. It asks again and again rather than blocks, so that the host can do more meanwhile.
class Waiter {
 public:
  std::function<void()> hook;  // see set_wait_hook
  void wait(cudaEvent_t event) const;
};

// Copies between pageable host memory and the device through a ring of pieces of pinned memory, in order on a stream.
// to_device returns once the bytes are copied into the ring, and waits only for pieces that are still on their way.
class Staging {
 public:
  Staging(ComputeStream& stream, const Waiter& waiter);
  void to_device(const void* host, std::byte* device, Index bytes);
  void to_host(const std::byte* device, void* host, Index bytes);

 private:
  static constexpr int pieces = 16;
  static constexpr Index piece_bytes = Index{1} << 20;

  std::byte* piece(int i) const { return memory_.get() + i * piece_bytes; }
  // Goes to the next piece once nothing uses it. The event of the piece before says when its copies have ended.
  void next_piece();

  ComputeStream& stream_;
  const Waiter& waiter_;
  DeviceMemory memory_;
  std::array<Owned<cudaEvent_t>, pieces> events_;
  int current_ = 0;
  Index used_ = 0;  // bytes of the current piece
};

}  // namespace sy::cuda
