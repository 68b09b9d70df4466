// Runs the blocks of a launch, one after the other.
//
// The threads of a block are fibers. A fiber runs until it waits for other threads or ends. It
// waits at a barrier of the block or in an exchange of its warp. The order of the blocks, warps and
// lanes changes from launch to launch (set_order_seed).
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <type_traits>

#include "host/order.h"

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz) {}
};
// Coordinates of the running thread and its block.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace sy::cuda_host {

struct Grid {
  const void* kernel = nullptr;
  std::uint64_t x = 1, y = 1;
  int threads = 1;
  std::size_t shared_bytes = 0;
};
// Maximum number of threads per block of a kernel without __launch_bounds__. The compiler may use
// 255 registers for a thread, and a multiprocessor has 65,536. A kernel with __launch_bounds__
// begins at a multiple of bounded_kernel; hardly any other kernel does.
constexpr int always_launched = 65536 / 256;
constexpr std::size_t bounded_kernel = 4096;
// Allocates device memory for the code of a kernel at its first launch. Does nothing if
// CUDA_MODULE_LOADING is EAGER: all kernels are then loaded with the context. Returns false if no
// memory is left. (runtime.cpp)
bool load(const void* kernel);
// Enqueues a launch, which calls `thread` in every thread of the grid.
void run_grid(const Grid& grid, Stream* stream, const std::function<void()>& thread, Where where);

// ---- for the thread that runs ----

inline int lane() {
  return static_cast<int>(threadIdx.x % 32);
}
std::byte* dynamic_shared();
void block_barrier(Where where);

// Starts an asynchronous copy of at most 16 bytes to shared memory. The caller has just written the
// bytes to `to`. They are garbage there until the thread waits for its copies.
void start_copy(void* to, std::size_t bytes);
void wait_for_copies();

// Exchange of values between lanes of a warp, the basis of all warp operations. Every lane of
// `mask` publishes its value and waits until all of them have. It may then read any of these values
// until its Exchange ends:
//   const Exchange<float4> shares(0xffffffffu, mine);   // at most share_bytes each
//   float4 other = shares[lane];
// All lanes of the mask must be at the same line of the program. A lane that has ended, or does not
// exist, is reported.
constexpr std::size_t share_bytes = 64;
struct Meeting {
  unsigned mask = 0, arrived = 0, left = 0;
  Where where;
  alignas(16) std::array<std::array<std::byte, share_bytes>, 32> shares;
};
Meeting& meet(unsigned mask, const void* share, std::size_t bytes, Where where);
[[noreturn]] void bad_lane(const Meeting& meeting, int lane);

template <class T>
class Exchange {
 public:
  Exchange(unsigned mask, const T& mine, Where where = Where::current())
      : meeting_(meet(mask, &mine, sizeof(T), where)) {
    static_assert(sizeof(T) <= share_bytes && std::is_trivially_copyable_v<T>);
  }
  ~Exchange() { meeting_.left |= 1u << lane(); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  const T& operator[](int lane) const {
    if (lane < 0 || lane >= 32 || !(meeting_.mask >> lane & 1)) [[unlikely]]
      bad_lane(meeting_, lane);
    return *reinterpret_cast<const T*>(meeting_.shares[static_cast<std::size_t>(lane)].data());
  }

 private:
  Meeting& meeting_;
};

}  // namespace sy::cuda_host
