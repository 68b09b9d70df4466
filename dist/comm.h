// Collectives over one group of ranks. Knows tensors; knows no model. comm_self serves one rank without MPI; comm_mpi has host
// buffers, and moves them through shared memory where ranks share a machine (window.h), and by MPI; comm_nccl NCCL on device
// buffers; comm_dry counts bytes. Every rank of the group must make the same calls in the same order.
//
// A result depends on the group alone, not on who arrives first; on the host, sums are taken in rank order.
//
// On device buffers a collective runs beside what the backend computes. mark() says what it waits for, wait() what waits
// for it; the plain calls do both, so that to the caller they are in order with everything else, and the host goes on.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

enum class Reduce { sum, max };

// A buffer whose content goes elsewhere, and the buffer for what comes.
struct InOut {
  ConstView in;
  View out;
};

// A buffer, of the same size on every rank, and the rank of the group that it is broadcast from or reduced to.
struct Rooted {
  View x;
  int root;
};

// What a rank sends in an all-reduce of so many bytes, and receives. Up to all_reduce_whole bytes, all of them to each other
// rank: one message each. Beyond, block by block, the pieces that the others sum, and then its own sum to each of them.
Index all_reduce_bytes(Index bytes, Index width, int size, int rank);
inline constexpr Index all_reduce_whole = Index{16} << 10, all_reduce_block = Index{8} << 20;  // bytes

inline Index row_bytes(ConstView x) {
  return x.shape().elements(1) * size_of(x.dtype());
}

enum class Collective : std::uint8_t { broadcast, all_reduce, reduce, reduce_scatter, all_gather, all_to_all };
constexpr int num_collectives = 6;
std::string_view name_of(Collective kind);
const char* with_article(Collective kind);  // "an all-to-all"

// What one rank has sent to the others of its group: bytes that these cannot do without, however MPI routes them.
struct Traffic {
  Index calls = 0, bytes = 0;
  double seconds = 0;  // in the calls, waiting for the other ranks included
};

// The public functions check shapes, compare (dist/compare.h), count, and tell the watchdog (kernels/waiting.h); the do_* of each
// kind move the data.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  // The ranks whose colour is that of this one, in their order. color must be the same function on all ranks. Collective.
  std::unique_ptr<Comm> split(const std::function<int(int rank)>& color) const;
  void barrier();

  void broadcast(View x, int root);
  // x = the reduction of every rank's x, element by element, in rank order. f32, f64, i32, i64.
  void all_reduce(View x, Reduce op = Reduce::sum);
  // in: [size * n], out: [n]: the sum over ranks of piece `rank` of in, and may be that piece. f32, or bf16, summed in f32.
  void reduce_scatter(ConstView in, View out);
  // in: [n], out: [size * n]. `in` may be piece `rank` of `out`.
  void all_gather(ConstView in, View out);
  // Rows of in: [sum send, ...] go to ranks in order, send[r] rows to rank r; out: [sum receive, ...] arrives in rank
  // order. Rows have the same size on both sides and on every rank.
  void all_to_all_v(ConstView in, std::span<const Index> send, View out, std::span<const Index> receive);

  // ---- beside the backend ----
  // Whether collectives run beside what the backend computes; where not, the calls below are complete when they return.
  virtual bool asynchronous() const { return false; }
  // What is started from now on sees all that the backend was given up to here.
  virtual void mark() {}
  // all_to_all_v of several buffers, of which as many rows go each way: one collective, with a message for each of them.
  void start_all_to_all_v(std::span<const InOut> buffers, std::span<const Index> send, std::span<const Index> receive);
  // Each x at its root becomes the sum of every rank's x; on the other ranks x is undefined afterwards. f32. One collective.
  void start_reduce(std::span<const Rooted> parts);
  void start_reduce(View x, int root) {
    const Rooted part{x, root};
    start_reduce({&part, 1});
  }
  // Every rank's x becomes that of its root. One collective.
  void start_broadcast(std::span<const Rooted> parts);
  // What the backend is given from now on sees the results of all that was started.
  virtual void wait() {}

  // Every rank tells the others as many words, `mine`: [n]; all: [size * n]. On the host, whatever the buffers of the
  // collectives. False where there is nobody to tell; `all` then stays as it is.
  virtual bool tell(std::span<const Index> /*mine*/, std::span<Index> /*all*/) const { return false; }
  // The others of the group by their ranks in the world, as "with ranks 0, 2-5": words that last as long as the process.
  virtual const char* others() const { return ""; }

  // Of a group of one rank nothing is counted.
  const Traffic& traffic(Collective kind) const { return traffic_[static_cast<int>(kind)]; }

  // On the host alone.
  double sum(double x);
  Index max(Index x);

 protected:
  virtual std::unique_ptr<Comm> do_split(const std::function<int(int rank)>& color) const = 0;
  virtual void do_barrier() = 0;
  virtual void do_broadcast(std::span<const Rooted> parts) = 0;
  virtual void do_all_reduce(View x, Reduce op) = 0;
  virtual void do_reduce(std::span<const Rooted> parts) = 0;
  virtual void do_reduce_scatter(ConstView in, View out) = 0;
  virtual void do_all_gather(ConstView in, View out) = 0;
  virtual void do_all_to_all_v(std::span<const InOut> buffers, std::span<const Index> send,
                               std::span<const Index> receive) = 0;

 private:
  std::array<Traffic, num_collectives> traffic_{};
};

// "0-3, 8"
std::string ranges(const std::vector<int>& ascending);
// The same words for as long as the process lasts.
const char* lasting(const std::string& words);

// On host buffers.
std::unique_ptr<Comm> make_comm_self();
std::unique_ptr<Comm> make_comm_dry(int size, int rank);

}  // namespace sy
