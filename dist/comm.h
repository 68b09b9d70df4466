// Collectives over one group of ranks. Knows tensors; knows no model. comm_self serves one rank without MPI; comm_mpi
// speaks MPI on host buffers; comm_dry counts bytes. Every rank of the group must make the same calls in the same order.
//
// Sums are taken in rank order, whatever arrives first, so a result depends on the group alone.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

enum class Reduce { sum, max };

enum class Collective : std::uint8_t { broadcast, all_reduce, reduce_scatter, all_gather, all_to_all };
constexpr int num_collectives = 5;
std::string_view name_of(Collective kind);

// What one rank has sent to the others of its group: bytes that these cannot do without, however MPI routes them.
struct Traffic {
  Index calls = 0, bytes = 0;
  double seconds = 0;  // in the calls, waiting for the other ranks included
};

// The public functions check shapes and count; the do_* of each kind move the data.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  // The ranks whose colour is that of this one, in their order. color must be the same function on all ranks.
  virtual std::unique_ptr<Comm> split(const std::function<int(int rank)>& color) const = 0;
  virtual void barrier() = 0;

  void broadcast(View x, int root);
  // x = the reduction of every rank's x, element by element. f32, f64, i32, i64. Every rank sends all of x to all others:
  // for what is small (counts and norms). Gradients go through reduce_scatter.
  void all_reduce(View x, Reduce op = Reduce::sum);
  // in: [size * n], out: [n]: the sum over ranks of piece `rank` of in, and may be that piece. f32.
  void reduce_scatter(ConstView in, View out);
  // in: [n], out: [size * n]. `in` may be piece `rank` of `out`.
  void all_gather(ConstView in, View out);
  // Rows of in: [sum send, ...] go to ranks in order, send[r] rows to rank r; out: [sum receive, ...] arrives in rank
  // order. Rows have the same size on both sides and on every rank.
  void all_to_all_v(ConstView in, std::span<const Index> send, View out, std::span<const Index> receive);

  // Of a group of one rank nothing is counted.
  const Traffic& traffic(Collective kind) const { return traffic_[static_cast<int>(kind)]; }

  double sum(double x);
  Index max(Index x);

 protected:
  virtual void do_broadcast(View x, int root) = 0;
  virtual void do_all_reduce(View x, Reduce op) = 0;
  virtual void do_reduce_scatter(ConstView in, View out) = 0;
  virtual void do_all_gather(ConstView in, View out) = 0;
  virtual void do_all_to_all_v(ConstView in, std::span<const Index> send, View out, std::span<const Index> receive) = 0;

 private:
  std::array<Traffic, num_collectives> traffic_{};
};

std::unique_ptr<Comm> make_comm_self();
std::unique_ptr<Comm> make_comm_dry(int size, int rank);

}  // namespace sy
