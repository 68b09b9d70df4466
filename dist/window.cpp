#include "dist/window.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>

#include "kernels/check.h"
#include "kernels/waiting.h"

namespace sy {
namespace {

// Data written by different ranks never shares a cache line.
constexpr Index line = Window::line;
Index whole_lines(Index bytes) {
  return (bytes + line - 1) / line * line;
}

Index address(const std::byte* begin) {
  return static_cast<Index>(reinterpret_cast<std::uintptr_t>(begin));
}

// Futex of a rank, in its own segment: code() of the event that it sleeps for.
// Only the rank that causes this event makes the system call.
struct alignas(line) Bell {
  std::atomic<std::uint32_t> awaits{0};  // 0: awake
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);

std::uint32_t code(int mate, int what) {
  return static_cast<std::uint32_t>(2 * mate + what + 1);
}

// Time that a waiting rank polls, yielding its core, before it sleeps. A peer that computes at the
// same time seldom takes longer. Waking a rank takes about ten microseconds.
constexpr std::chrono::microseconds awake{200};
// Longest sleep before the rank lets MPI progress.
constexpr std::chrono::milliseconds nap{10};

}  // namespace

// Mailbox from one rank to another, in the sender's segment.
// It has two headers, since each send buffer may have one unread message to a peer.
struct alignas(line) Window::Mail {
  std::atomic<std::uint64_t> sent{0};  // sequence number of the latest message
  struct {
    Index at, bytes;
  } letters[2];
};
// Acknowledgements of one rank to another, in the receiver's segment.
struct alignas(line) Window::Receipt {
  std::atomic<std::uint64_t> read{0};  // sequence number of the latest message that was read
};
// Addresses in a rank's segment. It has a Mail and a Receipt for each rank of the window.
struct Window::Part {
  Bell* bell = nullptr;
  Mail* mail = nullptr;
  Receipt* receipts = nullptr;
  std::byte* data = nullptr;  // two send buffers

  Part(std::byte* begin, int mates)
      : bell(reinterpret_cast<Bell*>(begin)),
        mail(reinterpret_cast<Mail*>(begin + sizeof(Bell))),
        receipts(reinterpret_cast<Receipt*>(mail + mates)),
        data(reinterpret_cast<std::byte*>(receipts + mates)) {}
  // Size of a segment, including padding to a cache line.
  static Index bytes(int mates, Index half) {
    return line + static_cast<Index>(sizeof(Bell)) + mates * static_cast<Index>(sizeof(Mail) + sizeof(Receipt)) +
           2 * half;
  }
};

namespace {

// Returns whether `mine` is true on all ranks. Collective.
bool all_of(MPI_Comm comm, bool mine) {
  int ok = mine;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &ok, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
  return ok != 0;
}

// Makes the kernel allocate the pages now; returns false if it cannot.
// Otherwise a later write kills the rank by SIGBUS if /dev/shm is full.
bool populate(std::byte* begin, Index bytes) {
  const auto before = static_cast<Index>(reinterpret_cast<std::uintptr_t>(begin) % sysconf(_SC_PAGESIZE));
  if (madvise(begin - before, before + bytes, MADV_POPULATE_WRITE) == 0) return true;
  return errno == EINVAL;  // not supported before Linux 5.14
}

// Returns why a window of so many bytes would not fit; empty if it fits.
// MPI libraries put the window into /dev/shm.
// If they fail to, the call may not return on all ranks.
// Therefore twice the size must be free before the call.
std::string no_room(Index bytes) {
  rlimit files{};
  getrlimit(RLIMIT_FSIZE, &files);
  if (files.rlim_cur < 2 * static_cast<rlim_t>(bytes))
    return fmt::format("files may have {:.1f} MiB (ulimit -f), and twice {:.1f} are wanted",
                       static_cast<double>(files.rlim_cur) / (1 << 20), static_cast<double>(bytes) / (1 << 20));
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) != 0) return fmt::format("/dev/shm: {}", std::strerror(errno));
  const Index free = static_cast<Index>(shm.f_bavail) * static_cast<Index>(shm.f_frsize);
  if (free < 2 * bytes)
    return fmt::format("/dev/shm has {:.1f} MiB free, and twice {:.1f} are wanted",
                       static_cast<double>(free) / (1 << 20), static_cast<double>(bytes) / (1 << 20));
  void* const room =
      mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED)
    return fmt::format("{:.1f} MiB cannot be mapped ({}): see ulimit -v", 2 * static_cast<double>(bytes) / (1 << 20),
                       std::strerror(errno));
  munmap(room, 2 * bytes);
  return "";
}

// Allocates the window, `bytes` of it for this rank. Returns false on all ranks if it fails on any.
bool allocate(MPI_Comm mates, Index bytes, MPI_Win* window) {
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");  // own pages per rank, near its core
  void* mine = nullptr;
  const bool made = MPI_Win_allocate_shared(bytes, 1, info, mates, &mine, window) == MPI_SUCCESS;
  MPI_Info_free(&info);
  if (!all_of(mates, made)) return false;
  if (all_of(mates, populate(static_cast<std::byte*>(mine), bytes))) return true;
  MPI_Win_free(window);
  return false;
}

}  // namespace

std::shared_ptr<Window> Window::open(MPI_Comm world, const std::function<int(int)>& group, Index half,
                                     std::string* why) {
  MPI_Comm machine, mates;
  check_mpi(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine), "MPI_Comm_split_type");
  int here = 0, size = 1, me = 0, rank = 0;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_rank(machine, &here);
  const int mine = group(here);
  check_mpi(MPI_Comm_split(machine, mine < 0 ? MPI_UNDEFINED : mine, here, &mates), "MPI_Comm_split");
  MPI_Comm_free(&machine);
  if (mates == MPI_COMM_NULL) return nullptr;
  MPI_Comm_set_errhandler(mates, MPI_ERRORS_RETURN);
  MPI_Comm_size(mates, &size);
  MPI_Comm_rank(mates, &me);
  half = whole_lines(half);
  const Index bytes = Part::bytes(size, half);
  MPI_Win window = MPI_WIN_NULL;
  if (size > 1) {
    *why = no_room(bytes * size);
    if (!all_of(mates, why->empty()))
      *why = why->empty() ? "another rank of this machine has too little room" : *why;
    else if (!allocate(mates, bytes, &window))
      *why = "MPI cannot make a window of shared memory";
  }
  if (window == MPI_WIN_NULL) {
    MPI_Comm_free(&mates);
    return nullptr;
  }
  std::vector<int> ranks(size);
  check_mpi(MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, mates), "MPI_Allgather");
  return std::shared_ptr<Window>(new Window(mates, window, std::move(ranks), half));
}

namespace {

// Returns $SWITCHYARD_WINDOW; empty if it is not set, or if it is invalid.
// If `valid` is not nullptr, it becomes false for an invalid value, otherwise true.
std::optional<int> window_setting(bool* valid = nullptr) {
  const char* const given = std::getenv("SWITCHYARD_WINDOW");
  const std::string_view text = given ? given : "";
  int ranks = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), ranks);
  const bool right = read.ec == std::errc() && read.ptr == text.data() + text.size() && ranks >= 0;
  if (valid) *valid = right || text.empty();
  return right ? std::optional(ranks) : std::nullopt;
}

}  // namespace

void check_window_setting() {
  bool valid = true;
  window_setting(&valid);
  if (!valid)
    bad_input("SWITCHYARD_WINDOW = '{}': give a number of ranks, 0 for none, or unset it",
              std::getenv("SWITCHYARD_WINDOW"));
}

std::shared_ptr<Window> Window::open(MPI_Comm world, std::string* why) {
  int ranks = 0;
  MPI_Comm_size(world, &ranks);
  // Runtime::run reports an invalid value, after all ranks can agree on errors.
  const int together = window_setting().value_or(ranks);
  if (together < 2 && ranks > 1) *why = fmt::format("SWITCHYARD_WINDOW = {}", together);
  return open(
      world, [&](int rank) { return together < 2 ? -1 : rank / together; }, default_half, why);
}

Window::Window(MPI_Comm mates, MPI_Win window, std::vector<int> ranks, Index half)
    : mates_(mates),
      window_(window),
      ranks_(std::move(ranks)),
      half_(half),
      part_(Part::bytes(size(), half)),
      sent_(size()),
      read_(size()) {
  MPI_Comm_rank(mates_, &me_);
  if (size() <= sysconf(_SC_NPROCESSORS_ONLN)) alone_ = std::chrono::microseconds(50);
  check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
  std::vector<std::byte*> begins;
  for (int r = 0; r < size(); ++r) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* begin = nullptr;
    check_mpi(MPI_Win_shared_query(window_, r, &bytes, &unit, &begin), "MPI_Win_shared_query");
    begins.push_back(static_cast<std::byte*>(begin));
  }
  // MPI's memory may not begin at a cache line. Each owner shares the offset of its segment.
  std::vector<Index> offsets(size());
  offsets[me_] = whole_lines(address(begins[me_])) - address(begins[me_]);
  check_mpi(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, offsets.data(), 1, MPI_INT64_T, mates_), "MPI_Allgather");
  for (int r = 0; r < size(); ++r) {
    parts_.emplace_back(begins[r] + offsets[r], size());
    SY_ASSERT(address(begins[r] + offsets[r]) % line == 0, "the memory of rank {} is not aligned here", ranks_[r]);
  }
  new (parts_[me_].bell) Bell;
  for (int r = 0; r < size(); ++r) {
    new (parts_[me_].mail + r) Mail;
    new (parts_[me_].receipts + r) Receipt;
  }
  check_mpi(MPI_Barrier(mates_), "MPI_Barrier");
}

Window::~Window() {
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
  MPI_Comm_free(&mates_);
}

// Waits until ready(): the only wait for another rank through shared memory.
// It spins, then yields the core between checks, then sleeps on the futex. If there are more ranks
// than cores, it yields at once. After each sleep it calls MPI_Iprobe, so that MPI can progress
// messages that this rank sent earlier.
template <class Ready>
void Window::await(int mate, Awaited what, Ready ready) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 100; ++i)
    if (ready()) return;
  const auto begin = Clock::now();
  for (Clock::duration waited{0}; waited < awake; waited = Clock::now() - begin) {
    if (waited >= alone_) sched_yield();
    if (ready()) return;
  }
  std::atomic<std::uint32_t>& bell = parts_[me_].bell->awaits;
  const std::uint32_t mine = code(mate, what);
  const timespec timeout{0, std::chrono::nanoseconds(nap).count()};
  for (;;) {
    bell.store(mine, std::memory_order_relaxed);
    // Either ready() sees the event here, or the sender sees `mine` in wake().
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!ready()) syscall(SYS_futex, &bell, FUTEX_WAIT, mine, &timeout, nullptr, 0);
    bell.store(0, std::memory_order_relaxed);
    if (ready()) return Waiting::progress();
    int there = 0;
    // check_mpi() publishes progress. A probe is no progress, so that only its errors are checked.
    const int error = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mates_, &there, MPI_STATUS_IGNORE);
    if (error != MPI_SUCCESS) check_mpi(error, "MPI_Iprobe");
  }
}

// Wakes a peer if it sleeps for this event.
void Window::wake(int mate, Awaited what) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<std::uint32_t>& bell = parts_[mate].bell->awaits;
  std::uint32_t sleeps = code(me_, what);
  if (bell.load(std::memory_order_relaxed) != sleeps || !bell.compare_exchange_strong(sleeps, 0)) return;
  syscall(SYS_futex, &bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void Window::turn() {
  turn_ = 1 - turn_;
  used_ = 0;
  for (const auto& [mate, sent] : unread_[turn_]) {
    const std::atomic<std::uint64_t>& read = parts_[mate].receipts[me_].read;
    await(mate, receipt, [&, sent = sent] { return read.load(std::memory_order_acquire) >= sent; });
  }
  unread_[turn_].clear();
}

Index Window::put(const std::byte* data, Index bytes) {
  const Index at = turn_ * half_ + used_;
  used_ += whole_lines(bytes);
  SY_ASSERT(used_ <= half_, "{} bytes in half a part of {}", used_, half_);
  if (bytes > 0) std::memcpy(parts_[me_].data + at, data, bytes);
  return at;
}

void Window::send(int mate, Index at, Index bytes) {
  Mail& mail = parts_[me_].mail[mate];
  mail.letters[sent_[mate] % 2] = {at, bytes};
  mail.sent.store(++sent_[mate], std::memory_order_release);
  unread_[turn_].emplace_back(mate, sent_[mate]);
  wake(mate, letter);
}

std::span<const std::byte> Window::take(int mate) {
  const Mail& mail = parts_[mate].mail[me_];
  await(mate, letter, [&] { return mail.sent.load(std::memory_order_acquire) > read_[mate]; });
  const auto [at, bytes] = mail.letters[read_[mate] % 2];
  return {parts_[mate].data + at, static_cast<std::size_t>(bytes)};
}

void Window::done(int mate) {
  parts_[me_].receipts[mate].read.store(++read_[mate], std::memory_order_release);
  wake(mate, receipt);
}

void Window::trade(std::span<const Give> gives, std::span<Get> gets) {
  const Index most = gives.empty() ? 0 : room(half_, static_cast<Index>(gives.size()));
  for (Index given = 0;; given += most) {
    bool more = false;
    if (std::any_of(gives.begin(), gives.end(), [&](const Give& g) { return given < g.bytes; })) turn();
    for (const Give& give : gives) {
      if (given >= give.bytes) continue;
      const Index bytes = std::min(most, give.bytes - given), at = put(give.data + given, bytes);
      for (const int mate : give.to) send(mate, at, bytes);
      more |= given + most < give.bytes;
    }
    for (Get& get : gets) {
      if (get.bytes == 0) continue;
      const std::span<const std::byte> came = take(get.from);
      const auto bytes = static_cast<Index>(came.size());
      SY_ASSERT(bytes <= get.bytes, "{} bytes of rank {}, {} expected", bytes, ranks_[get.from], get.bytes);
      std::memcpy(get.data, came.data(), came.size());
      done(get.from);
      get.data += bytes;
      get.bytes -= bytes;
      more |= get.bytes > 0;
    }
    if (!more) return;
  }
}

}  // namespace sy
