#include "kernels/cuda/staging.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace sy::cuda {

void Waiter::wait(cudaEvent_t event) const {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds patience(20'000), nap(50);
  const auto start = Clock::now();
  const Waiting waiting("the device", "", {}, true);
  for (;;) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) check(state, "waiting for the GPU");
    cudaGetLastError();  // a later call would report "not ready" as an error
    if (Clock::now() - start < patience) {
      std::this_thread::yield();
      continue;
    }
    if (hook) hook();
    std::this_thread::sleep_for(nap);
  }
}

Staging::Staging(ComputeStream& stream, const Waiter& waiter)
    : stream_(stream), waiter_(waiter), memory_(pinned_memory(pieces * piece_bytes)) {
  for (auto& event : events_) event = make_event();
}

void Staging::next_piece() {
  check(cudaEventRecord(events_[current_].get(), stream_.cut()), "cudaEventRecord");
  current_ = (current_ + 1) % pieces;
  waiter_.wait(events_[current_].get());
  used_ = 0;
}

void Staging::to_device(const void* host, std::byte* device, Index bytes) {
  const Giving giving;
  for (const auto* from = static_cast<const std::byte*>(host); bytes > 0;) {
    if (used_ == piece_bytes) next_piece();
    const Index now = std::min(bytes, piece_bytes - used_);
    std::byte* const pinned = piece(current_) + used_;
    std::memcpy(pinned, from, static_cast<std::size_t>(now));
    check(cudaMemcpyAsync(device, pinned, static_cast<std::size_t>(now), cudaMemcpyHostToDevice, stream_.cut()),
          "a copy to the GPU");
    used_ = std::min(piece_bytes, (used_ + now + 255) / 256 * 256);
    from += now;
    device += now;
    bytes -= now;
  }
}

void Staging::to_host(const std::byte* device, void* host, Index bytes) {
  const Giving giving;
  // Each chunk uses one buffer. While a chunk is in flight, the host copies the previous one to its
  // destination.
  struct Part {
    int piece;
    Index begin, bytes;
  };
  const auto deliver = [&](const Part& part) {
    waiter_.wait(events_[part.piece].get());
    std::memcpy(static_cast<std::byte*>(host) + part.begin, piece(part.piece), static_cast<std::size_t>(part.bytes));
  };
  next_piece();
  Part before{};
  for (Index begin = 0; begin < bytes; begin += piece_bytes) {
    const Part part{current_, begin, std::min(piece_bytes, bytes - begin)};
    check(cudaMemcpyAsync(piece(current_), device + begin, static_cast<std::size_t>(part.bytes), cudaMemcpyDeviceToHost,
                          stream_.cut()),
          "a copy from the GPU");
    next_piece();
    if (begin > 0) deliver(before);
    before = part;
  }
  deliver(before);
}

}  // namespace sy::cuda
