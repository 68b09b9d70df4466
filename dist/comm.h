// Collectives over one group of ranks. Knows tensors; knows no model. comm_self serves one rank without MPI; comm_mpi
// speaks MPI on host buffers; comm_dry counts bytes. Every rank of the group must make the same calls in the same order.
//
// Sums are taken in rank order, whatever arrives first, so a result depends on the group alone.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

enum class Reduce { sum, max };

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  virtual std::unique_ptr<Comm> split(int color, int key) const = 0;

  virtual void barrier() = 0;
  virtual void broadcast(View x, int root) = 0;
  // x = the reduction of every rank's x, element by element. f32, f64, i32, i64.
  virtual void all_reduce(View x, Reduce op = Reduce::sum) = 0;
  // in: [size * n], out: [n]: the sum over ranks of piece `rank` of in. f32. May not overlap.
  virtual void reduce_scatter(ConstView in, View out) = 0;
  // in: [n], out: [size * n]. `in` may be piece `rank` of `out`.
  virtual void all_gather(ConstView in, View out) = 0;
  // Rows of in: [sum send, ...] go to ranks in order, send[r] rows to rank r; out: [sum receive, ...] arrives in rank
  // order. Rows have the same size on both sides and on every rank.
  virtual void all_to_all_v(ConstView in, std::span<const Index> send, View out, std::span<const Index> receive) = 0;

  // What has passed through: for the metrics and the benchmarks.
  struct Traffic {
    Index calls = 0, bytes = 0;  // bytes: sent to other ranks by this one
    double seconds = 0;
  };
  Traffic traffic;

  double sum(double x);
  Index max(Index x);
};

std::unique_ptr<Comm> make_comm_self();
std::unique_ptr<Comm> make_comm_dry(int size, int rank);

}  // namespace sy
