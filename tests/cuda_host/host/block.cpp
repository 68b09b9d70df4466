#include "host/block.h"

#include <array>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cuda_runtime.h"
#include "host/fiber.h"
#include "host/memory.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// Bounds of the section of __shared__ variables; null if no kernel has such a variable.
extern "C" __attribute__((weak)) std::byte __start_sy_shared[], __stop_sy_shared[];

namespace sy::cuda_host {

namespace {

// Content of shared memory before it is written: NaN as float, bf16 and double, and large as an
// integer.
constexpr std::array garbage{std::byte{0xf7}, std::byte{0x7f}};
void fill_garbage(std::byte* begin, std::byte* end) {
  for (std::ptrdiff_t i = 0; i < end - begin; ++i) begin[i] = garbage[static_cast<std::size_t>(i) % 2];
}

constexpr std::size_t max_dynamic_shared = 227 * 1024;  // of an H100
constexpr std::size_t canary_bytes = 256;

struct Copy {
  std::byte* to;
  std::size_t bytes;
  std::array<std::byte, 16> values;
};

void run_threads();

// A fiber and the thread that it runs.
struct Runner {
  Fiber fiber{run_threads};
  int thread = 0;
  const char* waits_for = nullptr;  // nullptr if it does not wait
  Where where;
  std::vector<Copy> copies;  // in flight
};

// Permutation of 0..n-1: i becomes first + i step mod n, where step and n have no common factor.
// The identity if `random` is nullptr.
class Order {
 public:
  Order(std::uint64_t n, std::mt19937_64* random) : n_(n) {
    if (random == nullptr || n < 2) return;
    first_ = (*random)() % n;
    do step_ = (*random)() % n;
    while (std::gcd(step_, n) != 1);
  }
  std::uint64_t operator[](std::uint64_t i) const {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(step_) * i + first_) % n_);
  }

 private:
  std::uint64_t n_, first_ = 0, step_ = 1;
};

struct Warp {
  unsigned exited = 0;                                // lanes that have ended or do not exist
  std::vector<Meeting*> open;                         // not all lanes have joined
  std::vector<std::pair<Runner*, Meeting*>> waiting;  // for an open meeting
  std::deque<Meeting> meetings;                       // in use, and free ones
};

struct Machine {
  const std::function<void()>* thread = nullptr;
  Grid grid;
  std::mt19937_64 random{1};
  bool shuffled = true;

  Fiber main;
  Runner* running = nullptr;
  std::deque<Runner> runners;
  std::vector<Runner*> idle;
  std::deque<Runner*> runnable;
  std::exception_ptr error;

  // State of the running block.
  int started = 0, ended = 0;
  Order warp_order{1, nullptr}, lane_order{1, nullptr};
  std::vector<Warp> warps;
  std::vector<Runner*> at_barrier;
  Where barrier;

  std::vector<std::byte> shared;  // dynamic shared memory, then the canary

  void run_block();
  void start_thread();
  Runner* next();
  [[noreturn]] void stalled();
  int warp_threads(std::size_t warp) const { return std::min(32, grid.threads - 32 * static_cast<int>(warp)); }
};
Machine machine;

void set_thread(int thread) {
  threadIdx = {static_cast<unsigned>(thread), 0, 0};
}

// Switches from the fiber `from` to a runner, or to the main fiber if `to` is nullptr.
void jump(Fiber& from, Runner* to) {
  machine.running = to;
  from.jump(to ? to->fiber : machine.main);
}

// Body of a runner's fiber. It runs threads one after the other, as long as no waiting thread can
// continue.
void run_threads() {
  Machine& m = machine;
  for (;;) {
    while (m.started < m.grid.threads && m.runnable.empty() && !m.error) m.start_thread();
    Runner* self = m.running;
    m.idle.push_back(self);
    jump(self->fiber, m.next());
  }
}

void Machine::start_thread() {
  const auto number = static_cast<std::uint64_t>(started++);
  // Whole warps start in one order, and their lanes in another. A last, incomplete warp starts
  // last.
  const std::uint64_t whole = static_cast<std::uint64_t>(grid.threads) / 32;
  const std::uint64_t warp = number / 32 < whole ? warp_order[number / 32] : whole;
  const std::uint64_t lane = number / 32 < whole ? lane_order[number % 32] : number % 32;
  running->thread = static_cast<int>(32 * warp + lane);
  set_thread(running->thread);
  try {
    (*thread)();
    if (!running->copies.empty()) mistake("the thread ends without waiting for its copies to shared memory");
    ++ended;
    warps[warp].exited |= 1u << lane;
  } catch (...) {
    error = std::current_exception();
  }
}

// Returns the runner that continues. nullptr, the main fiber, if all threads have ended or none can
// continue.
Runner* Machine::next() {
  if (error) return nullptr;
  if (!runnable.empty()) {
    Runner* runner = runnable.front();
    runnable.pop_front();
    return runner;
  }
  if (started == grid.threads) return nullptr;
  if (idle.empty()) return &runners.emplace_back();
  Runner* runner = idle.back();
  idle.pop_back();
  return runner;
}

// Suspends the running thread until it is made runnable.
void wait(const char* what, Where where) {
  Runner& self = *machine.running;
  self.waits_for = what;
  self.where = where;
  jump(self.fiber, machine.next());
  self.waits_for = nullptr;
  set_thread(self.thread);
}

void Machine::run_block() {
  started = ended = 0;
  warps.resize((static_cast<std::size_t>(grid.threads) + 31) / 32);
  for (std::size_t w = 0; w < warps.size(); ++w) warps[w].exited = warp_threads(w) == 32 ? 0 : ~0u << warp_threads(w);
  fill_garbage(shared.data(), shared.data() + shared.size());
  jump(main, next());
  if (!error && ended < grid.threads) {
    try {
      stalled();
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (error) {  // objects on the stacks of the threads are lost
    runnable.clear(), idle.clear(), at_barrier.clear(), warps.clear();
    for (Runner& runner : runners) {
      runner.fiber.reset();
      runner.waits_for = nullptr;
      runner.copies.clear();
      idle.push_back(&runner);
    }
    std::rethrow_exception(std::exchange(error, nullptr));
  }
  for (std::size_t i = grid.shared_bytes; i < shared.size(); ++i)
    if (shared[i] != garbage[i % 2])
      mistake("the kernel writes byte {} of its {} bytes of dynamic shared memory", i, grid.shared_bytes);
}

void Machine::stalled() {
  const Runner* waiting = nullptr;
  const Runner* other = nullptr;  // waits at another line
  for (const Runner& runner : runners) {
    if (runner.waits_for == nullptr) continue;
    if (waiting == nullptr) waiting = &runner;
    if (runner.where.line() != waiting->where.line()) other = &runner;
  }
  if (other)
    mistake("thread {} waits for {} at {}, thread {} for {} at {}: neither comes", waiting->thread, waiting->waits_for,
            text(waiting->where), other->thread, other->waits_for, text(other->where));
  mistake("thread {} waits for {} at {}, and {} threads have ended without it", waiting->thread, waiting->waits_for,
          text(waiting->where), ended);
}

}  // namespace

std::byte* dynamic_shared() {
  return machine.shared.data();
}

void start_copy(void* to, std::size_t bytes) {
  Copy& copy = machine.running->copies.emplace_back(Copy{static_cast<std::byte*>(to), bytes, {}});
  std::memcpy(copy.values.data(), copy.to, bytes);
  fill_garbage(copy.to, copy.to + bytes);
}

void wait_for_copies() {
  for (const Copy& copy : machine.running->copies) std::memcpy(copy.to, copy.values.data(), copy.bytes);
  machine.running->copies.clear();
}

void block_barrier(Where where) {
  Machine& m = machine;
  if (m.at_barrier.empty()) m.barrier = where;
  if (where.line() != m.barrier.line() || where.file_name() != m.barrier.file_name())
    mistake("a barrier in divergent code: one thread is at {}, another at {}", text(m.barrier), text(where));
  if (static_cast<int>(m.at_barrier.size()) + 1 < m.grid.threads) {
    m.at_barrier.push_back(m.running);
    wait("the barrier", where);
    return;
  }
  m.runnable.insert(m.runnable.end(), m.at_barrier.begin(), m.at_barrier.end());
  m.at_barrier.clear();
}

Meeting& meet(unsigned mask, const void* share, std::size_t bytes, Where where) {
  const std::size_t number = threadIdx.x / 32;
  Warp& warp = machine.warps[number];
  const unsigned me = 1u << lane();
  if (!(mask & me)) mistake("an exchange at {} whose mask {:#x} leaves out lane {} itself", text(where), mask, lane());
  if (mask & warp.exited)
    mistake("an exchange at {} with lane {} of warp {}, which has ended", text(where),
            __builtin_ctz(mask & warp.exited), number);
  Meeting* meeting = nullptr;
  for (Meeting* open : warp.open) {
    if (!(open->mask & mask)) continue;
    if (open->mask != mask || open->where.line() != where.line() || open->where.file_name() != where.file_name())
      mistake("lanes of warp {} wait for each other in different exchanges: mask {:#x} at {}, mask {:#x} at {}", number,
              open->mask, text(open->where), mask, text(where));
    meeting = open;
  }
  if (meeting == nullptr) {
    const auto free =
        std::find_if(warp.meetings.begin(), warp.meetings.end(), [](const Meeting& m) { return m.left == m.mask; });
    meeting = free == warp.meetings.end() ? &warp.meetings.emplace_back() : &*free;
    meeting->mask = mask, meeting->arrived = meeting->left = 0, meeting->where = where;
    warp.open.push_back(meeting);
  }
  std::memcpy(meeting->shares[static_cast<std::size_t>(lane())].data(), share, bytes);
  meeting->arrived |= me;
  if (meeting->arrived != mask) {
    warp.waiting.emplace_back(machine.running, meeting);
    wait("lanes of its warp", where);
    return *meeting;
  }
  std::erase(warp.open, meeting);
  std::erase_if(warp.waiting, [&](const auto& waiting) {
    if (waiting.second == meeting) machine.runnable.push_back(waiting.first);
    return waiting.second == meeting;
  });
  return *meeting;
}

void bad_lane(const Meeting& meeting, int lane) {
  mistake("in the exchange at {} lane {} reads lane {}, which takes no part in it", text(meeting.where),
          cuda_host::lane(), lane);
}

void set_order_seed(std::uint64_t seed) {
  machine.random.seed(seed);
  machine.shuffled = seed != 0;
}

namespace {

void run_blocks(const Grid& grid, Stream* stream, const std::function<void()>& thread, Where where) {
  Machine& m = machine;
  begin_launch(start_operation(stream, "the kernel launched", where));
  struct End {
    ~End() { end_launch(); }
  } end;
  m.thread = &thread;
  m.grid = grid;
  m.shared.resize(grid.shared_bytes + canary_bytes);
  fill_garbage(__start_sy_shared, __stop_sy_shared);
  blockDim = dim3(static_cast<unsigned>(grid.threads));
  gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  std::mt19937_64* random = m.shuffled ? &m.random : nullptr;
  const Order block_order(grid.x * grid.y, random);
  m.warp_order = Order(static_cast<std::uint64_t>(grid.threads) / 32, random);
  m.lane_order = Order(32, random);
  for (std::uint64_t i = 0; i < grid.x * grid.y; ++i) {
    const std::uint64_t block = block_order[i];
    blockIdx = {static_cast<unsigned>(block % grid.x), static_cast<unsigned>(block / grid.x), 0};
    launch_state.tag = static_cast<std::uint8_t>(first_tag + block % tags);
    m.run_block();
  }
}

}  // namespace

void run_grid(const Grid& grid, Stream* stream, const std::function<void()>& thread, Where where) {
  if (grid.threads < 1 || grid.threads > 1024)
    mistake("a launch at {} of blocks of {} threads", text(where), grid.threads);
  if (grid.threads > always_launched && reinterpret_cast<std::uintptr_t>(grid.kernel) % bounded_kernel != 0)
    mistake(
        "a launch at {} of blocks of {} threads, whose kernel has no __launch_bounds__ and may be too large for them",
        text(where), grid.threads);
  if (grid.shared_bytes > max_dynamic_shared)
    mistake("a launch at {} with {} bytes of dynamic shared memory", text(where), grid.shared_bytes);
  if (const cudaError_t untold = cudaGetLastError(); untold != cudaSuccess)
    mistake("the launch at {} would report an earlier error that nobody took: {}", text(where),
            cudaGetErrorName(untold));
  if (stream == nullptr || !stream->capture) ++counter_values.launches;
  enqueue(stream, [=](Stream* on) { run_blocks(grid, on, thread, where); });
}

}  // namespace sy::cuda_host
