// The wait state of a rank: for other ranks, or for its device. The one computing thread publishes
// it. The thread of the watchdog reads it (dist/watchdog.h).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <type_traits>

#include "kernels/tensor.h"

namespace sy {

// A value that one thread writes and others read without tearing. `version_` is odd during a write.
template <class T>
class Seqlock {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Seqlock() { write(T{}); }
  void write(const T& value) {
    std::array<std::uint64_t, num_cells> all{};
    std::memcpy(all.data(), &value, sizeof(T));
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < num_cells; ++i) cells_[i].store(all[i], std::memory_order_relaxed);
    version_.store(version + 2, std::memory_order_release);
  }
  // Changes with each write.
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  T read() const {
    for (;;) {
      const std::uint64_t version = version_.load(std::memory_order_acquire);
      std::array<std::uint64_t, num_cells> all{};
      for (std::size_t i = 0; i < num_cells; ++i) all[i] = cells_[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (version % 2 != 0 || version_.load(std::memory_order_relaxed) != version) continue;
      T value{};
      std::memcpy(static_cast<void*>(&value), all.data(), sizeof(T));
      return value;
    }
  }

 private:
  static constexpr std::size_t num_cells = (sizeof(T) + 7) / 8;
  std::atomic<std::uint64_t> version_{0};
  std::array<std::atomic<std::uint64_t>, num_cells> cells_{};
};

// Rows that an all-to-all moves between this rank and the others. -1: the collective moves no rows.
struct RowsMoved {
  Index sends = -1, expects = -1;
};

// The wait of the computing thread. The strings must live as long as the process.
struct BlockedOn {
  // "an all-to-all", "the device"; nullptr: the host computes and waits for nothing
  const char* operation = nullptr;
  const char* peers = "";  // "with ranks 1, 2"
  RowsMoved rows;
  // True: it may wait for work that is already enqueued on the device
  bool device = false;
  std::chrono::steady_clock::time_point since{};  // start of the wait, or of its latest progress
};

// Wait state of a rank. One thread publishes it with ScopedBlock. Any other thread may read it.
class BlockState {
 public:
  BlockedOn read() const { return published_.read(); }
  std::uint64_t version() const { return published_.version(); }  // changes with each publication
  // Restarts the clock of the current wait, after some of the expected data has arrived.
  void progress() { publish(current_); }

 private:
  friend class ScopedBlock;
  void publish(BlockedOn block) {
    block.since = std::chrono::steady_clock::now();
    current_ = block;
    published_.write(block);
  }
  BlockedOn current_;  // of the computing thread
  Seqlock<BlockedOn> published_;
};

// A wait until the end of the scope; then the enclosing wait restarts its clock. Takes about ten
// nanoseconds.
class ScopedBlock {
 public:
  ScopedBlock(BlockState& state, const char* operation, const char* peers = "", RowsMoved rows = {},
              bool device = false)
      : state_(state), previous_(state.current_) {
    state_.publish({operation, peers, rows, device});
  }
  ~ScopedBlock() { state_.publish(previous_); }
  ScopedBlock(const ScopedBlock&) = delete;
  ScopedBlock& operator=(const ScopedBlock&) = delete;

 private:
  BlockState& state_;
  BlockedOn previous_;
};

}  // namespace sy
