// One routing's tokens on their way to the experts and back: as the product takes them, and by a message for each expert.
#pragma once

#include "dist/exchange.h"
#include "tests/bench/gpu/bench.h"

namespace sy::bench {

// Which experts the tokens of each rank choose.
struct Load {
  std::string name;
  std::function<std::vector<std::int32_t>(Index tokens, int rank)> experts;  // [T, k]
};

class Trip {
 public:
  // `mesh`, on buffers of `backend`, has its experts over all ranks. Collective, as every function.
  Trip(Backend& backend, const Mesh& mesh, const ModelShape& shape, DType dtype, const Load& load);

  void dispatch();
  // With the dispatch before it, whose time is to be subtracted.
  void dispatch_combine();
  // So many rows to each rank.
  void all_to_all(Index each);

  // Both end with the rows that this rank's experts work on, and their weights, by (expert, token); back: and, as if the experts
  // left them as they are, with their weightless sums at their tokens. In the product's way a token's row is copied where it has
  // arrived. By message each of its experts is sent a row, which arrives where it stays: T * k rows leave in P * E / P
  // messages, of which every rank knows the sizes.
  void sorted(bool back);
  void by_expert(bool back);
  // Throws Failure where the two differ. On host buffers, as is by_expert.
  void compare_ways();

  // Rows that leave this rank for others, and the bytes of one.
  Index sent_rows();
  Index row_bytes() const { return sy::row_bytes(x_); }

 private:
  Exchange begin();
  ConstView identity(Index n);
  std::vector<std::byte> found() const;

  Backend& backend_;
  const Mesh& mesh_;
  Comm& group_;
  ExpertRanks ranks_;
  Index T_, k_, E_, sent_ = -1;
  Arena arena_;
  Tensor chosen_, kept_, x_, y_, weights_, identity_, plain_;
  Sends sends_;
  ConstView arrived_, arrived_weights_;
  View rows_, gates_;  // [R, D], [R, 1] of the latest way
};

}  // namespace sy::bench
