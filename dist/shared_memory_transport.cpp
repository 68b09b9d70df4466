#include "dist/shared_memory_transport.h"

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
#include <cstring>
#include <new>
#include <optional>
#include <string_view>

#include "kernels/check.h"
#include "kernels/environment.h"

namespace sy {
namespace {

// Data written by different ranks never shares a cache line.
constexpr Index line = SharedMemoryTransport::line;
Index whole_lines(Index bytes) {
  return (bytes + line - 1) / line * line;
}

Index address(const std::byte* begin) {
  return static_cast<Index>(reinterpret_cast<std::uintptr_t>(begin));
}

// Futex of a rank, in its own segment: event_code() of the event that it sleeps for.
// Only the rank that causes this event makes the system call.
struct alignas(line) Sleeper {
  std::atomic<std::uint32_t> event{0};  // 0: awake
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);

std::uint32_t event_code(int peer, int event) {
  return static_cast<std::uint32_t>(2 * peer + event + 1);
}

// Time that a waiting rank polls, yielding its core, before it sleeps. A peer that computes at the
// same time seldom takes longer. Waking a rank takes about ten microseconds.
constexpr std::chrono::microseconds poll_time{200};
// Longest sleep before the rank lets MPI progress.
constexpr std::chrono::milliseconds max_sleep{10};

}  // namespace

// Mailbox from one rank to another, in the sender's segment.
// It has two headers, since each send buffer may have one unread message to a peer.
struct alignas(line) SharedMemoryTransport::Mailbox {
  std::atomic<std::uint64_t> sent{0};  // sequence number of the latest message
  struct {
    Index at, bytes;
  } headers[2];
};
// Acknowledgements of one rank to another, in the receiver's segment.
struct alignas(line) SharedMemoryTransport::Acknowledgement {
  std::atomic<std::uint64_t> read{0};  // sequence number of the latest message that was read
};
// Addresses in a rank's segment. It has a mailbox and an acknowledgement for each rank.
struct SharedMemoryTransport::Segment {
  Sleeper* sleeper = nullptr;
  Mailbox* mailboxes = nullptr;
  Acknowledgement* acknowledgements = nullptr;
  std::byte* data = nullptr;  // two send buffers

  Segment(std::byte* begin, int num_ranks)
      : sleeper(reinterpret_cast<Sleeper*>(begin)),
        mailboxes(reinterpret_cast<Mailbox*>(begin + sizeof(Sleeper))),
        acknowledgements(reinterpret_cast<Acknowledgement*>(mailboxes + num_ranks)),
        data(reinterpret_cast<std::byte*>(acknowledgements + num_ranks)) {}
  // Size of a segment, including padding to a cache line.
  static Index bytes(int num_ranks, Index buffer_bytes) {
    return line + static_cast<Index>(sizeof(Sleeper)) +
           num_ranks * static_cast<Index>(sizeof(Mailbox) + sizeof(Acknowledgement)) + 2 * buffer_bytes;
  }
};

namespace {

// Returns whether `mine` is true on all ranks. Collective.
bool true_on_all_ranks(MPI_Comm comm, bool mine) {
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
std::string space_error(Index bytes) {
  const auto mib = [](auto size) { return static_cast<double>(size) / (1 << 20); };
  rlimit files{};
  getrlimit(RLIMIT_FSIZE, &files);
  if (files.rlim_cur < 2 * static_cast<rlim_t>(bytes))
    return fmt::format("files may have {:.1f} MiB (ulimit -f), and twice {:.1f} are wanted", mib(files.rlim_cur),
                       mib(bytes));
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) != 0) return fmt::format("/dev/shm: {}", std::strerror(errno));
  const Index free = static_cast<Index>(shm.f_bavail) * static_cast<Index>(shm.f_frsize);
  if (free < 2 * bytes)
    return fmt::format("/dev/shm has {:.1f} MiB free, and twice {:.1f} are wanted", mib(free), mib(bytes));
  void* const mapping =
      mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED)
    return fmt::format("{:.1f} MiB cannot be mapped ({}): see ulimit -v", mib(2 * bytes), std::strerror(errno));
  munmap(mapping, 2 * bytes);
  return "";
}

// Allocates the window, `bytes` of it for this rank. Returns false on all ranks if it fails on any.
bool allocate(MPI_Comm comm, Index bytes, MPI_Win* window) {
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");  // own pages per rank, near its core
  void* mine = nullptr;
  const bool allocated = MPI_Win_allocate_shared(bytes, 1, info, comm, &mine, window) == MPI_SUCCESS;
  MPI_Info_free(&info);
  if (!true_on_all_ranks(comm, allocated)) {
    *window = MPI_WIN_NULL;  // to free it would wait for the ranks that have none
    return false;
  }
  if (true_on_all_ranks(comm, populate(static_cast<std::byte*>(mine), bytes))) return true;
  MPI_Win_free(window);
  return false;
}

}  // namespace

std::shared_ptr<SharedMemoryTransport> SharedMemoryTransport::open(BlockState& blocked, MPI_Comm world,
                                                                   const std::function<int(int)>& group,
                                                                   Index buffer_bytes, std::string* why) {
  MPI_Comm machine, comm;
  check_mpi(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine), "MPI_Comm_split_type");
  int here = 0, size = 1, me = 0, rank = 0;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_rank(machine, &here);
  const int mine = group(here);
  check_mpi(MPI_Comm_split(machine, mine < 0 ? MPI_UNDEFINED : mine, here, &comm), "MPI_Comm_split");
  MPI_Comm_free(&machine);
  if (comm == MPI_COMM_NULL) return nullptr;
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_size(comm, &size);
  MPI_Comm_rank(comm, &me);
  buffer_bytes = whole_lines(buffer_bytes);
  const Index bytes = Segment::bytes(size, buffer_bytes);
  MPI_Win window = MPI_WIN_NULL;
  if (size > 1) {
    *why = space_error(bytes * size);
    if (!true_on_all_ranks(comm, why->empty()))
      *why = why->empty() ? "another rank of this machine has too little space" : *why;
    else if (!allocate(comm, bytes, &window))
      *why = "MPI cannot make a window of shared memory";
  }
  if (window == MPI_WIN_NULL) {
    MPI_Comm_free(&comm);
    return nullptr;
  }
  std::vector<int> ranks(size);
  check_mpi(MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, comm), "MPI_Allgather");
  return std::shared_ptr<SharedMemoryTransport>(
      new SharedMemoryTransport(blocked, comm, window, std::move(ranks), buffer_bytes));
}

namespace {

// Returns $SWITCHYARD_WINDOW; empty if it is not set, or if it is invalid.
std::optional<int> window_setting() {
  const char* const value = environment("SWITCHYARD_WINDOW");
  const std::string_view text = value ? value : "";
  int ranks = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), ranks);
  const bool is_valid = read.ec == std::errc() && read.ptr == text.data() + text.size() && ranks >= 0;
  return is_valid ? std::optional(ranks) : std::nullopt;
}

}  // namespace

void check_window_setting() {
  const char* const value = environment("SWITCHYARD_WINDOW");
  if (value && *value && !window_setting())
    bad_input("SWITCHYARD_WINDOW = '{}': give a number of ranks, 0 for none, or unset it", value);
}

std::shared_ptr<SharedMemoryTransport> SharedMemoryTransport::open(BlockState& blocked, MPI_Comm world,
                                                                   std::string* why) {
  int ranks = 0;
  MPI_Comm_size(world, &ranks);
  // Runtime::run reports an invalid value, after all ranks can agree on errors.
  const int ranks_per_window = window_setting().value_or(ranks);
  if (ranks_per_window < 2 && ranks > 1) *why = fmt::format("SWITCHYARD_WINDOW = {}", ranks_per_window);
  return open(
      blocked, world, [&](int rank) { return ranks_per_window < 2 ? -1 : rank / ranks_per_window; },
      default_buffer_bytes, why);
}

SharedMemoryTransport::SharedMemoryTransport(BlockState& blocked, MPI_Comm comm, MPI_Win window, std::vector<int> ranks,
                                             Index buffer_bytes)
    : blocked_(blocked),
      comm_(comm),
      window_(window),
      world_ranks_(std::move(ranks)),
      buffer_bytes_(buffer_bytes),
      segment_bytes_(Segment::bytes(size(), buffer_bytes)),
      num_sent_(size()),
      num_received_(size()) {
  MPI_Comm_rank(comm_, &rank_);
  if (size() <= sysconf(_SC_NPROCESSORS_ONLN)) spin_time_ = std::chrono::microseconds(50);
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
  offsets[rank_] = whole_lines(address(begins[rank_])) - address(begins[rank_]);
  check_mpi(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, offsets.data(), 1, MPI_INT64_T, comm_), "MPI_Allgather");
  for (int r = 0; r < size(); ++r) {
    segments_.emplace_back(begins[r] + offsets[r], size());
    SY_ASSERT(address(begins[r] + offsets[r]) % line == 0, "the memory of rank {} is not aligned here",
              world_ranks_[r]);
  }
  new (segments_[rank_].sleeper) Sleeper;
  for (int r = 0; r < size(); ++r) {
    new (segments_[rank_].mailboxes + r) Mailbox;
    new (segments_[rank_].acknowledgements + r) Acknowledgement;
  }
  check_mpi(MPI_Barrier(comm_), "MPI_Barrier");
}

SharedMemoryTransport::~SharedMemoryTransport() {
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
  MPI_Comm_free(&comm_);
}

// Waits until ready(): the only wait for another rank through shared memory.
// It spins, then yields the core between checks, then sleeps on the futex. If there are more ranks
// than cores, it yields at once; beside a process that computes, it sleeps at once
// (core_sharing.h). After each sleep it calls MPI_Iprobe, so that MPI can progress messages that
// this rank sent earlier.
template <class Ready>
void SharedMemoryTransport::wait_until(int peer, Event event, Ready ready) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 100; ++i)
    if (ready()) return;
  const auto begin = Clock::now();
  for (Clock::duration waited{0}; waited < poll_time; waited = Clock::now() - begin) {
    if (waited >= spin_time_ && !core_.yield()) break;
    if (ready()) return;
  }
  std::atomic<std::uint32_t>& sleeper = segments_[rank_].sleeper->event;
  const std::uint32_t mine = event_code(peer, event);
  const timespec timeout{0, std::chrono::nanoseconds(max_sleep).count()};
  for (;;) {
    sleeper.store(mine, std::memory_order_relaxed);
    // Either ready() sees the event here, or the sender sees `mine` in wake().
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!ready()) syscall(SYS_futex, &sleeper, FUTEX_WAIT, mine, &timeout, nullptr, 0);
    sleeper.store(0, std::memory_order_relaxed);
    if (ready()) return blocked_.progress();
    int there = 0;
    // A probe is no progress, and publishes none.
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &there, MPI_STATUS_IGNORE), "MPI_Iprobe");
  }
}

// Wakes a peer if it sleeps for this event.
void SharedMemoryTransport::wake(int peer, Event event) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<std::uint32_t>& sleeper = segments_[peer].sleeper->event;
  std::uint32_t expected = event_code(rank_, event);
  if (sleeper.load(std::memory_order_relaxed) != expected || !sleeper.compare_exchange_strong(expected, 0)) return;
  syscall(SYS_futex, &sleeper, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void SharedMemoryTransport::next_buffer() {
  current_buffer_ = 1 - current_buffer_;
  used_bytes_ = 0;
  for (const auto& [peer, sent] : unacknowledged_[current_buffer_]) {
    const std::atomic<std::uint64_t>& read = segments_[peer].acknowledgements[rank_].read;
    wait_until(peer, acknowledgement, [&, sent = sent] { return read.load(std::memory_order_acquire) >= sent; });
  }
  unacknowledged_[current_buffer_].clear();
}

Index SharedMemoryTransport::write(const std::byte* data, Index bytes) {
  const Index at = current_buffer_ * buffer_bytes_ + used_bytes_;
  used_bytes_ += whole_lines(bytes);
  SY_ASSERT(used_bytes_ <= buffer_bytes_, "{} bytes in a send buffer of {}", used_bytes_, buffer_bytes_);
  if (bytes > 0) std::memcpy(segments_[rank_].data + at, data, bytes);
  return at;
}

void SharedMemoryTransport::send(int peer, Index at, Index bytes) {
  Mailbox& mailbox = segments_[rank_].mailboxes[peer];
  mailbox.headers[num_sent_[peer] % 2] = {at, bytes};
  mailbox.sent.store(++num_sent_[peer], std::memory_order_release);
  unacknowledged_[current_buffer_].emplace_back(peer, num_sent_[peer]);
  wake(peer, message);
}

std::span<const std::byte> SharedMemoryTransport::receive(int peer) {
  const Mailbox& mailbox = segments_[peer].mailboxes[rank_];
  wait_until(peer, message, [&] { return mailbox.sent.load(std::memory_order_acquire) > num_received_[peer]; });
  const auto [at, bytes] = mailbox.headers[num_received_[peer] % 2];
  return {segments_[peer].data + at, static_cast<std::size_t>(bytes)};
}

void SharedMemoryTransport::acknowledge(int peer) {
  segments_[rank_].acknowledgements[peer].read.store(++num_received_[peer], std::memory_order_release);
  wake(peer, acknowledgement);
}

void SharedMemoryTransport::send_receive(std::span<const SendOp> sends, std::span<ReceiveOp> receives) {
  const Index max_bytes = sends.empty() ? 0 : max_message_bytes(buffer_bytes_, static_cast<Index>(sends.size()));
  for (Index offset = 0;; offset += max_bytes) {
    bool more = false;
    if (std::any_of(sends.begin(), sends.end(), [&](const SendOp& op) { return offset < op.bytes; })) next_buffer();
    for (const SendOp& op : sends) {
      if (offset >= op.bytes) continue;
      const Index bytes = std::min(max_bytes, op.bytes - offset), at = write(op.data + offset, bytes);
      for (const int peer : op.to) send(peer, at, bytes);
      more |= offset + max_bytes < op.bytes;
    }
    for (ReceiveOp& op : receives) {
      if (op.bytes == 0) continue;
      const std::span<const std::byte> received = receive(op.from);
      const auto bytes = static_cast<Index>(received.size());
      SY_ASSERT(bytes <= op.bytes, "{} bytes of rank {}, {} expected", bytes, world_ranks_[op.from], op.bytes);
      std::memcpy(op.data, received.data(), received.size());
      acknowledge(op.from);
      op.data += bytes;
      op.bytes -= bytes;
      more |= op.bytes > 0;
    }
    if (!more) return;
  }
}

}  // namespace sy
