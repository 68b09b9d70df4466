#include "kernels/cuda/staging.h"

#include <algorithm>
#include <cstring>

namespace sy::cuda {

Staging::Staging(ComputeStream& stream) : stream_(stream), memory_(pinned_memory(num_buffers * buffer_bytes)) {
  for (auto& event : events_) event = make_event();
}

void Staging::next_buffer() {
  check(cudaEventRecord(events_[current_].get(), stream_.end_capture()), "cudaEventRecord");
  current_ = (current_ + 1) % num_buffers;
  stream_.wait(events_[current_].get());
  used_ = 0;
}

void Staging::to_device(const void* host, std::byte* device, Index bytes) {
  const EnqueueScope enqueue_scope(stream_.blocked());
  for (const auto* from = static_cast<const std::byte*>(host); bytes > 0;) {
    if (used_ == buffer_bytes) next_buffer();
    const Index now = std::min(bytes, buffer_bytes - used_);
    std::byte* const pinned = buffer(current_) + used_;
    std::memcpy(pinned, from, now);
    check(cudaMemcpyAsync(device, pinned, now, cudaMemcpyHostToDevice, stream_.end_capture()), "a copy to the GPU");
    used_ = std::min(buffer_bytes, (used_ + now + 255) / 256 * 256);
    from += now;
    device += now;
    bytes -= now;
  }
}

void Staging::to_host(const std::byte* device, void* host, Index bytes) {
  const EnqueueScope enqueue_scope(stream_.blocked());
  // Each chunk uses one buffer. While a chunk is in flight, the host copies the previous one to its
  // destination.
  struct Chunk {
    int buffer;
    Index begin, bytes;
  };
  const auto deliver = [&](const Chunk& chunk) {
    stream_.wait(events_[chunk.buffer].get());
    std::memcpy(static_cast<std::byte*>(host) + chunk.begin, buffer(chunk.buffer), chunk.bytes);
  };
  next_buffer();
  Chunk previous{};
  for (Index begin = 0; begin < bytes; begin += buffer_bytes) {
    const Chunk chunk{current_, begin, std::min(buffer_bytes, bytes - begin)};
    check(cudaMemcpyAsync(buffer(current_), device + begin, chunk.bytes, cudaMemcpyDeviceToHost, stream_.end_capture()),
          "a copy from the GPU");
    next_buffer();
    if (begin > 0) deliver(previous);
    previous = chunk;
  }
  deliver(previous);
}

}  // namespace sy::cuda
