#include "host/block.h"

#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cuda_runtime.h"
#include "host/memory.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// The section of __shared__ variables; there is none where no kernel has any.
extern "C" __attribute__((weak)) std::byte __start_sy_shared[], __stop_sy_shared[];

namespace sy::cuda_host {

namespace {

namespace context = boost::context::detail;

// As a float, a bf16 and a double NaN, as an integer large: what shared memory holds before it is written.
constexpr std::uint16_t garbage = 0x7ff7;
void fill_garbage(std::byte* begin, std::byte* end) {
  for (; begin + sizeof garbage <= end; begin += sizeof garbage) std::memcpy(begin, &garbage, sizeof garbage);
}

constexpr std::size_t max_dynamic_shared = 227 * 1024;  // of an H100
constexpr std::size_t canary_bytes = 256;
constexpr std::size_t stack_bytes = 128 * 1024;

// ---- fibers ----

struct Copy {
  std::byte* to;
  std::size_t bytes;
  std::array<std::byte, 16> values;
};

struct Fiber {
  context::fcontext_t resume = nullptr;
  std::byte* stack = nullptr;
  std::size_t stack_size = 0;
  int thread = 0;
  const char* waits_for = nullptr;  // null: it does not wait
  Where where;
  std::vector<Copy> copies;  // of its thread, under way
};

void jump(Fiber& from, Fiber& to);
void arrived(context::transfer_t transfer);

// Numbers 0..n-1 in another order: a + i b mod n, b without a common factor with n.
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
  unsigned exited = 0;                               // lanes; those that do not exist are among them
  std::vector<Meeting*> open;                        // not all have arrived
  std::vector<std::pair<Fiber*, Meeting*>> waiting;  // for an open one
  std::deque<Meeting> meetings;                      // those in use, and more
};

struct Machine {
  const std::function<void()>* thread = nullptr;
  Grid grid;
  std::mt19937_64 random{1};
  bool shuffled = true;

  Fiber main;
  Fiber* running = &main;
  std::deque<Fiber> fibers;
  std::vector<Fiber*> idle;
  std::deque<Fiber*> runnable;
  std::exception_ptr error;

  // of the block
  int started = 0, ended = 0;
  Order warp_order{1, nullptr}, lane_order{1, nullptr};
  std::vector<Warp> warps;
  std::vector<Fiber*> at_barrier;
  Where barrier;

  std::vector<std::byte> shared;  // with the canary

  void run_block();
  void run_threads();
  void start_thread();
  void leave(bool idle);
  Fiber* next();
  [[noreturn]] void stalled();
  Fiber* new_fiber();
  int warp_threads(std::size_t warp) const { return std::min(32, grid.threads - 32 * static_cast<int>(warp)); }
};
Machine machine;

void set_thread(int thread) {
  threadIdx = {static_cast<unsigned>(thread), 0, 0};
}

#ifdef __SANITIZE_ADDRESS__
Fiber* came_from;
#endif

void jump(Fiber& from, Fiber& to) {
  machine.running = &to;
#ifdef __SANITIZE_ADDRESS__
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, to.stack, to.stack_size);
  came_from = &from;
  const auto transfer = context::jump_fcontext(to.resume, &from);
  arrived(transfer);
  const void* bottom = nullptr;
  std::size_t size = 0;
  __sanitizer_finish_switch_fiber(fake, &bottom, &size);
#else
  arrived(context::jump_fcontext(to.resume, &from));
#endif
  machine.running = &from;
  set_thread(from.thread);
}

// Keeps where the fiber that jumped here goes on.
void arrived(context::transfer_t transfer) {
  static_cast<Fiber*>(transfer.data)->resume = transfer.fctx;
}

void fiber_main(context::transfer_t transfer) {
  arrived(transfer);
#ifdef __SANITIZE_ADDRESS__
  const void* bottom = nullptr;
  std::size_t size = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (came_from == &machine.main) {
    machine.main.stack = static_cast<std::byte*>(const_cast<void*>(bottom));
    machine.main.stack_size = size;
  }
#endif
  machine.run_threads();
}

Fiber* Machine::new_fiber() {
  constexpr std::size_t slab = 64;  // stacks mapped at once
  static std::byte* mapped = nullptr;
  const std::size_t number = fibers.size();
  if (number % slab == 0) {
    void* p =
        mmap(nullptr, slab * stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) mistake("no memory for the stacks of a block's threads");
    mapped = static_cast<std::byte*>(p);
  }
  Fiber& fiber = fibers.emplace_back();
  fiber.stack = mapped + number % slab * stack_bytes;
  // Stacks that all began at the same offset of a page would share few sets of the cache.
  fiber.stack_size = stack_bytes - number % slab * 5 * 64;
  fiber.resume = context::make_fcontext(fiber.stack + fiber.stack_size, fiber.stack_size, fiber_main);
  return &fiber;
}

// What a fiber does: run a thread, and as long as none that waits can go on, another one.
void Machine::run_threads() {
  for (;;) {
    while (started < grid.threads && runnable.empty() && !error) start_thread();
    idle.push_back(running);
    Fiber* self = running;
    jump(*self, *next());
  }
}

void Machine::start_thread() {
  const auto number = static_cast<std::uint64_t>(started++);
  // Warps whole, in some order, and their lanes in some order; a last warp of fewer lanes goes last.
  const std::uint64_t whole = static_cast<std::uint64_t>(grid.threads) / 32;
  const std::uint64_t warp = number / 32 < whole ? warp_order[number / 32] : whole;
  const std::uint64_t lane = number / 32 < whole ? lane_order[number % 32] : number % 32;
  running->thread = static_cast<int>(32 * warp + lane);
  set_thread(running->thread);
  try {
    (*thread)();
    if (!running->copies.empty()) mistake("the thread ends without waiting for its copies to shared memory");
    ++ended;
    Warp& w = warps[warp];
    w.exited |= 1u << lane;
    for (const Meeting* meeting : w.open)
      if (meeting->mask >> lane & 1)
        mistake("lane {} of warp {} has ended, and others wait for it in the exchange at {}", lane, warp,
                text(meeting->where));
  } catch (...) {
    error = std::current_exception();
  }
}

Fiber* Machine::next() {
  if (error) return &main;
  if (!runnable.empty()) {
    Fiber* fiber = runnable.front();
    runnable.pop_front();
    return fiber;
  }
  if (started == grid.threads) return &main;  // all have ended, or nobody can go on
  if (idle.empty()) return new_fiber();
  Fiber* fiber = idle.back();
  idle.pop_back();
  return fiber;
}

// The running thread lets others run until it is made runnable.
void wait(const char* what, Where where) {
  Fiber& self = *machine.running;
  self.waits_for = what;
  self.where = where;
  jump(self, *machine.next());
  self.waits_for = nullptr;
}

void Machine::run_block() {
  started = ended = 0;
  warps.resize((static_cast<std::size_t>(grid.threads) + 31) / 32);
  for (std::size_t w = 0; w < warps.size(); ++w) warps[w].exited = warp_threads(w) == 32 ? 0 : ~0u << warp_threads(w);
  fill_garbage(shared.data(), shared.data() + shared.size());
  jump(main, *next());
  if (!error && ended < grid.threads) {
    try {
      stalled();
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (error) {  // what the threads held is lost
    runnable.clear(), idle.clear(), at_barrier.clear(), warps.clear();
    for (Fiber& fiber : fibers) {
      fiber.resume = context::make_fcontext(fiber.stack + fiber.stack_size, fiber.stack_size, fiber_main);
      fiber.waits_for = nullptr;
      fiber.copies.clear();
      idle.push_back(&fiber);
    }
    std::rethrow_exception(std::exchange(error, nullptr));
  }
  for (std::size_t i = 0; i < canary_bytes; i += sizeof garbage)
    if (std::memcmp(shared.data() + grid.shared_bytes + i, &garbage, sizeof garbage) != 0)
      mistake("the kernel writes byte {} of its {} bytes of dynamic shared memory", grid.shared_bytes + i,
              grid.shared_bytes);
}

void Machine::stalled() {
  const Fiber* waiting = nullptr;
  const Fiber* other = nullptr;  // waits elsewhere
  for (const Fiber& fiber : fibers) {
    if (fiber.waits_for == nullptr) continue;
    if (waiting == nullptr) waiting = &fiber;
    if (fiber.where.line() != waiting->where.line()) other = &fiber;
  }
  if (other)
    mistake("thread {} waits for {} at {}, thread {} for {} at {}: neither comes", waiting->thread, waiting->waits_for,
            text(waiting->where), other->thread, other->waits_for, text(other->where));
  mistake("thread {} waits for {} at {}, and {} threads have ended without it", waiting->thread, waiting->waits_for,
          text(waiting->where), ended);
}

}  // namespace

int lane() {
  return static_cast<int>(threadIdx.x % 32);
}

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

void run_grid(const Grid& grid, Stream* stream, const std::function<void()>& thread, Where where) {
  ++counter_values.launches;
  if (grid.threads < 1 || grid.threads > 1024)
    mistake("a launch at {} of blocks of {} threads", text(where), grid.threads);
  if (grid.shared_bytes > max_dynamic_shared)
    mistake("a launch at {} with {} bytes of dynamic shared memory", text(where), grid.shared_bytes);
  if (const cudaError_t untold = cudaGetLastError(); untold != cudaSuccess)
    mistake("the launch at {} would report an earlier error that nobody took: {}", text(where),
            cudaGetErrorName(untold));
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

}  // namespace sy::cuda_host
