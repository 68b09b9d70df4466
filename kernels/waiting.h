// The wait state of this process: for other ranks, or for its device. The one computing thread
// publishes it. Any other thread may read it (dist/watchdog.h).
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
    std::array<std::uint64_t, words> all{};
    std::memcpy(all.data(), &value, sizeof(T));
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < words; ++i) words_[i].store(all[i], std::memory_order_relaxed);
    version_.store(version + 2, std::memory_order_release);
  }
  // Changes with each write.
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  T read() const {
    for (;;) {
      const std::uint64_t version = version_.load(std::memory_order_acquire);
      std::array<std::uint64_t, words> all{};
      for (std::size_t i = 0; i < words; ++i) all[i] = words_[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (version % 2 != 0 || version_.load(std::memory_order_relaxed) != version) continue;
      T value{};
      std::memcpy(static_cast<void*>(&value), all.data(), sizeof(T));
      return value;
    }
  }

 private:
  static constexpr std::size_t words = (sizeof(T) + 7) / 8;
  std::atomic<std::uint64_t> version_{0};
  std::array<std::atomic<std::uint64_t>, words> words_{};
};

// Rows that an all-to-all moves between this rank and the others. -1: the collective moves no rows.
struct RowsMoved {
  Index sends = -1, expects = -1;
};

// State of a wait. The strings must live as long as the process.
struct Wait {
  // "an all-to-all", "the device"; nullptr: the host computes and waits for nothing
  const char* what = nullptr;
  const char* whom = "";  // "with ranks 1, 2"
  RowsMoved rows;
  // True: it may wait for work that is already enqueued on the device
  bool device = false;
  std::chrono::steady_clock::time_point since{};  // start of the wait, or of its latest progress
};
inline Seqlock<Wait> published_wait;

// A wait until the end of the scope; then the enclosing wait restarts its clock. Takes about ten
// nanoseconds.
class Waiting {
 public:
  explicit Waiting(const char* what, const char* whom = "", RowsMoved rows = {}, bool device = false) : before_(now_) {
    publish({what, whom, rows, device});
  }
  ~Waiting() { publish(before_); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Restarts the clock of the current wait, after a part of the expected data has arrived.
  static void progress() { publish(now_); }

 private:
  static void publish(Wait wait) {
    wait.since = std::chrono::steady_clock::now();
    now_ = wait;
    published_wait.write(wait);
  }
  inline static Wait now_;  // of the computing thread
  Wait before_;
};

}  // namespace sy
