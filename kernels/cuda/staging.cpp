#include "kernels/cuda/staging.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace sy::cuda {

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // told here: it must not be told again by a later call
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
    cudaGetLastError();  // told here
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    fail("no memory on the GPU for {} bytes, {} of {} are free: lower train.micro_batch or use more ranks", bytes, free,
         total);
  }
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); }};
}

DeviceMemory pinned_memory(Index bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, static_cast<std::size_t>(bytes)), "cudaMallocHost");
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFreeHost(p); }};
}

void Waiter::wait(cudaEvent_t event) const {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds patience(20'000), nap(50);
  const auto start = Clock::now();
  for (;;) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) check(state, "waiting for the GPU");
    cudaGetLastError();  // "not ready" counts as an error otherwise
    if (Clock::now() - start < patience) {
      std::this_thread::yield();
      continue;
    }
    if (hook) hook();
    std::this_thread::sleep_for(nap);
  }
}

Staging::Staging(cudaStream_t stream, const Waiter& waiter)
    : stream_(stream), waiter_(waiter), memory_(pinned_memory(pieces * piece_bytes)) {
  for (auto& event : events_) event = make_event();
}

void Staging::next_piece() {
  check(cudaEventRecord(events_[current_].get(), stream_), "cudaEventRecord");
  current_ = (current_ + 1) % pieces;
  waiter_.wait(events_[current_].get());
  used_ = 0;
}

void Staging::to_device(const void* host, std::byte* device, Index bytes) {
  for (const auto* from = static_cast<const std::byte*>(host); bytes > 0;) {
    if (used_ == piece_bytes) next_piece();
    const Index now = std::min(bytes, piece_bytes - used_);
    std::byte* const pinned = piece(current_) + used_;
    std::memcpy(pinned, from, static_cast<std::size_t>(now));
    check(cudaMemcpyAsync(device, pinned, static_cast<std::size_t>(now), cudaMemcpyHostToDevice, stream_),
          "a copy to the GPU");
    used_ = std::min(piece_bytes, (used_ + now + 255) / 256 * 256);
    from += now;
    device += now;
    bytes -= now;
  }
}

void Staging::to_host(const std::byte* device, void* host, Index bytes) {
  // Each part is in a piece of its own. While one is on its way, the one before it goes to where it belongs.
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
                          stream_),
          "a copy from the GPU");
    next_piece();
    if (begin > 0) deliver(before);
    before = part;
  }
  deliver(before);
}

}  // namespace sy::cuda
