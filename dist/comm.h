// Collectives over one group of ranks.
// All ranks of the group must make the same calls in the same order. Implementations:
//   comm_self   one rank, without MPI
//   comm_mpi    host buffers, by shared memory within a machine and by MPI otherwise
//   dist/nccl   device buffers, by NCCL (dist/device_comm.h)
//   comm_dry    counts bytes and moves no data, except small i32 all-to-alls and gathers
//
// Results depend on the group alone, not on the order of arrival.
// Sums on the host are in rank order. In trees (AllReduceAlgorithm), they are in that of the tree.
//
// On device buffers a collective overlaps with compute. It waits for the compute before its
// ComputePoint, and compute that is enqueued after Work::wait() waits for it. Calls without
// `start_` do both. They are in order with all other compute, and the host does not wait for them.
// The host waits only in barrier(), split() and host_all_gather().
//
// Errors: shapes or counts that do not match, and unsupported types, are an internal error. Failed
// communication and different fingerprints (dist/fingerprints.h) throw Failure.
//
// A const function starts no communication.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dist/rank_context.h"
#include "kernels/tensor.h"

namespace sy {

enum class Reduce { sum, max };

// Send and receive buffer of an all-to-all.
struct SendReceive {
  ConstView in;
  View out;
};

// Buffer of a broadcast or a reduce, of equal size on all ranks, and the root's rank in the group.
struct RootedBuffer {
  View x;
  int root;
};

// How a group of ranks computes an all-reduce of host buffers:
//   eager   every rank gets the buffers of all others, and sums them in rank order. Up to
//           all_reduce_eager_limit bytes, and 1 MiB for the buffers of all ranks.
//   blocks  each rank sums one block of the buffer, in rank order, and sends the sums to all
//           others. For larger buffers.
//   tree    for k = 0, 1, ..., rank r + 2^k sends its sum to rank r, if 2^(k+1) divides r. Then
//           rank 0 sends the whole sum to all. For buffers whose blocks are small (blocks_in_tree).
enum class AllReduceAlgorithm { eager, blocks, tree };
AllReduceAlgorithm all_reduce_algorithm(Index bytes, int size);
inline constexpr Index all_reduce_eager_limit = Index{16} << 10;
// Returns the bytes that `blocks` divides among the ranks of a group at a time.
Index all_reduce_chunk(int size);
// Groups of up to so many ranks have no trees.
inline constexpr int small_group = 16;
// Returns whether the blocks of a group's ranks are small: less than 1 KiB in a group of more than
// small_group ranks. Small blocks do not travel in one message for each pair of ranks. A
// reduce-scatter of f32 then sums in a tree, and an all-gather between machines is left to MPI.
bool blocks_in_tree(Index block_bytes, int size);
// Returns the bytes that `rank` of a group of `size` sends to other ranks in an all-reduce.
// In a tree, rank 0 sends the sum to all others, and these send one buffer. Otherwise it receives
// as many bytes as it sends.
// bytes: size of the buffer; width: bytes of an element.
Index all_reduce_bytes(Index bytes, Index width, int size, int rank);

// Returns the bytes of one row along the first dimension.
inline Index row_bytes(ConstView x) {
  return x.shape().elements(1) * size_of(x.dtype());
}

enum class Collective : std::uint8_t { broadcast, all_reduce, reduce, reduce_scatter, all_gather, all_to_all, gather };
constexpr int num_collectives = 7;
std::string_view name_of(Collective kind);  // "all-to-all"
const char* display_name(Collective kind);  // "an all-to-all"

// Calls of one kind of collective, and bytes that they sent from one rank to the others.
// Only data that the receiver needs count, not data that a library forwards.
struct Traffic {
  Index calls = 0, bytes = 0;
  // Host time in the calls, including waits for other ranks. A collective on device buffers counts
  // only until it is enqueued.
  double seconds = 0;
};

class Comm;

// Handle of a started collective of one communicator.
// A default-constructed Work is complete. Collectives on host buffers return it.
// If it is destroyed before wait(), the collective runs on, and no compute waits for it. Its
// buffers must then stay until the device is idle (Device::synchronize).
class [[nodiscard]] Work {
 public:
  Work() = default;
  // slot: argument of Comm::wait_for()
  Work(Comm& comm, std::size_t slot) : comm_(&comm), slot_(slot) {}
  Work(Work&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)), slot_(other.slot_) {}
  Work& operator=(Work&& other) noexcept {
    comm_ = std::exchange(other.comm_, nullptr);
    slot_ = other.slot_;
    return *this;
  }

  // Compute that is enqueued after this call waits for the collective. No-op if it is complete.
  // Only that compute may read results or reuse the buffers.
  void wait();
  // Adds a collective that the same communicator started later. wait() then waits for both.
  // An internal error if it is of another communicator.
  void join(Work later);

 private:
  Comm* comm_ = nullptr;  // nullptr if complete
  std::size_t slot_ = 0;
};

// Compute of the device that is enqueued before a call of Comm::compute_point().
// A communicator has a few points, and reuses the oldest one. A reused point stands for later
// compute, so a collective after it may wait longer than necessary.
struct ComputePoint {
  std::size_t slot = 0;
};

// Communicator of one group of ranks.
// Public functions check shapes, compare fingerprints between ranks (dist/fingerprints.h), count
// traffic and publish the wait to the watchdog (kernels/blocked_on.h). The do_* functions move the
// data.
class Comm {
 public:
  explicit Comm(std::shared_ptr<RankContext> context) : context_(std::move(context)) {}
  virtual ~Comm() = default;
  // The context of this rank, which its communicators share.
  RankContext& rank_context() const { return *context_; }
  const std::shared_ptr<RankContext>& shared_context() const { return context_; }
  virtual int size() const = 0;
  virtual int rank() const = 0;
  // Returns the communicator of the ranks whose `color` equals this rank's, in rank order.
  // Collective. All ranks must pass the same function, with values from 0 on. `rank` is a rank of
  // this group.
  std::unique_ptr<Comm> split(const std::function<int(int rank)>& color);
  // Returns after all ranks have called it. On device buffers, it first waits for the enqueued
  // compute.
  void barrier();

  // Copies x of the root to all ranks. Any type.
  void broadcast(View x, int root);
  // x = the element-wise reduction of all ranks' x. f32, f64, i32, i64.
  void all_reduce(View x, Reduce op = Reduce::sum);
  // out = the sum over ranks of block `rank` of `in`. f32 or bf16. A sum of bf16 is in f32, in rank
  // order, and rounded once.
  // Shapes: in [size * n]; out [n], may be that block of `in`; scratch [size * n] of the type of
  // `in`, memory of this call alone, if reduces_in_scratch(), otherwise empty.
  void reduce_scatter(ConstView in, View out, View scratch = {});
  // True if reduce_scatter() of this type needs scratch memory: for bf16 in device buffers, since
  // their libraries would round at every rank.
  bool reduces_in_scratch(DType type) const { return asynchronous() && type == DType::bf16; }
  // Gathers all ranks' `in` in rank order. Any type.
  // Shapes: in [n], may be block `rank` of `out`; out [size * n].
  void all_gather(ConstView in, View out);
  // Returns the bytes of all ranks, by rank, on the root; empty on other ranks. Their sizes may
  // differ. They travel in a binomial tree: a rank receives two messages from each of at most
  // log2(size) others, rounded up, and sends two, except the root.
  std::vector<std::string> gather(std::string_view mine, int root = 0);
  // Sends send[r] rows of `in` to each rank r, and receives receive[r] rows from it.
  // Shapes: in [sum of send, ...], in rank order of the destinations; out [sum of receive, ...], in
  // rank order of the sources. Rows have the same size in `in`, in `out` and on all ranks.
  void all_to_all_v(ConstView in, std::span<const Index> send, View out, std::span<const Index> receive);
  // Sends block r of `in` to each rank r, and receives a block of equal size from it. Any type.
  // Shapes: in and out [size * n], in rank order.
  void all_to_all(ConstView in, View out);

  // ---- asynchronous collectives ----
  // A collective waits for all compute that is already enqueued, or for that before `after`.
  // `after` must be a point of this communicator. Collectives of a communicator run in the order of
  // their start.

  // True if collectives overlap with compute. If false, the calls below are complete on return.
  virtual bool asynchronous() const { return false; }
  // Returns the compute that is already enqueued.
  virtual ComputePoint compute_point() { return {}; }
  // all_to_all_v of several buffers with equal row counts, in one collective.
  // There is one message per buffer and rank.
  Work start_all_to_all_v(std::span<const SendReceive> buffers, std::span<const Index> send,
                          std::span<const Index> receive);
  // Sums all ranks' x into x of the root, for each of `buffers`, in one collective. f32.
  // On other ranks x is undefined afterwards.
  Work start_reduce(std::span<const RootedBuffer> buffers, ComputePoint after);
  Work start_reduce(std::span<const RootedBuffer> buffers) { return start_reduce(buffers, compute_point()); }
  Work start_reduce(View x, int root) {
    const RootedBuffer buffer{x, root};
    return start_reduce({&buffer, 1});
  }
  // Copies x of the root to all ranks, for each of `buffers`, in one collective.
  Work start_broadcast(std::span<const RootedBuffer> buffers, ComputePoint after);
  Work start_broadcast(std::span<const RootedBuffer> buffers) { return start_broadcast(buffers, compute_point()); }

  // All-gathers host integers, also if the collectives are on device buffers. Collective.
  // traffic() does not count it. mine: [n]; all: [size * n].
  // Returns false and leaves `all` unchanged if there are no peers or the communicator is dry.
  virtual bool host_all_gather(std::span<const Index> /*mine*/, std::span<Index> /*all*/) { return false; }
  // Names the other ranks of the group by their ranks in the world: "with ranks 0, 2-5".
  // Empty if there are no peers or the communicator is dry.
  // The text lives until the process ends.
  virtual const char* peer_names() const { return ""; }

  // Returns the traffic of one kind of collective; all zeros in a group of one rank.
  const Traffic& traffic(Collective kind) const { return traffic_[static_cast<int>(kind)]; }

  // Return the sum and the maximum of x over all ranks. Collective. Only for communicators on host
  // buffers.
  double sum(double x);
  Index max(Index x);

 protected:
  friend Work;
  // Makes later compute wait for a collective. slot: of a Work that this communicator made.
  virtual void wait_for(std::size_t /*slot*/) {}

  virtual std::unique_ptr<Comm> do_split(const std::function<int(int rank)>& color) = 0;
  virtual void do_barrier() = 0;
  virtual Work do_broadcast(std::span<const RootedBuffer> buffers, ComputePoint after) = 0;
  virtual void do_all_reduce(View x, Reduce op) = 0;
  virtual Work do_reduce(std::span<const RootedBuffer> buffers, ComputePoint after) = 0;
  virtual void do_reduce_scatter(ConstView in, View out, View scratch) = 0;
  virtual void do_all_gather(ConstView in, View out) = 0;
  virtual std::vector<std::string> do_gather(std::string_view mine, int root) = 0;
  virtual Work do_all_to_all_v(std::span<const SendReceive> buffers, std::span<const Index> send,
                               std::span<const Index> receive) = 0;
  // By default, do_all_to_all_v.
  virtual void do_all_to_all(ConstView in, View out);

 private:
  std::shared_ptr<RankContext> context_;
  std::array<Traffic, num_collectives> traffic_{};
};

// Returns the texts of all ranks, by rank. Collective. A text must not contain '\0'.
std::vector<std::string> all_gather_texts(Comm& world, const std::string& mine);
// Formats an ascending list of ranks: "0-3, 8".
std::string format_rank_list(const std::vector<int>& ascending);
// Interns a text: returns an equal text that lives until the process ends.
const char* intern(const std::string& text);

// Returns a communicator of one rank. Its collectives copy or do nothing.
std::unique_ptr<Comm> make_comm_self(std::shared_ptr<RankContext> context = std::make_shared<RankContext>());
// Returns a dry communicator (dist/comm_dry.h); a comm_self if `size` is 1.
// asynchronous: of the communicator, and of those that are split from it.
std::unique_ptr<Comm> make_comm_dry(int size, int rank, bool asynchronous = false,
                                    std::shared_ptr<RankContext> context = std::make_shared<RankContext>());

}  // namespace sy
