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

  // How the experts' products come to their rows and their weights, by (expert, token). Either a token travels once to each
  // rank, where an index says which rows are its: products that read through one, as a host's do, have no more to wait for,
  // others wait until the rows are copied to their places. Or each of its experts is sent a row, which arrives in its place: T * k
  // rows leave, in a message for each expert, of which every rank knows the size.
  enum class Way { indexed, copied, by_expert };
  // back: and from the rows that the experts leave to the sums at their tokens. by_expert is for host buffers.
  void to_experts(Way way, bool back);
  // Throws Failure where copied and by_expert differ.
  void compare_ways();

  // Rows that leave this rank for others, and the bytes of one.
  Index sent_rows();
  Index row_bytes() const { return sy::row_bytes(x_); }

 private:
  void plan();
  Exchange begin();
  void once_to_each_rank(bool copied, bool back);
  void once_to_each_expert(bool back);
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
  bool doubles_ = false;  // experts double their rows, so that it shows whether what returns is theirs
  View rows_, gates_;     // [R, D], [R, 1] of the latest way; rows_ has no values where they were not copied
};

}  // namespace sy::bench
