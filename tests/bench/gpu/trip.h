// Dispatch and combine of one routing's tokens: as in the product, and by a message for each
// expert.
#pragma once

#include "dist/token_dispatcher.h"
#include "tests/bench/gpu/bench.h"

namespace sy::bench {

// Chosen experts of the tokens of each rank.
struct Load {
  std::string name;
  std::function<std::vector<std::int32_t>(Index tokens, int rank)> experts;  // [T, k]
};

class Trip {
 public:
  // `mesh`, on buffers of `device`, has its experts over all ranks. All functions are collective.
  Trip(Device& device, const Mesh& mesh, const ModelShape& shape, DType dtype, const Load& load);

  void dispatch();
  // Includes the dispatch before it, whose time is to be subtracted.
  void dispatch_combine();
  // Sends `each` rows to each rank.
  void all_to_all(Index each);

  // Ways in which the experts' products get their rows and weights, by (expert, token).
  // - indexed: a token is sent once to each rank, and an index finds its rows. Products
  //   that read through an index, such as those of a host, wait for nothing else.
  // - copied: a token is sent once to each rank, and the products wait until its rows are copied in
  //   order.
  // - by_expert: a row is sent to each expert of a token, and arrives in order. T * k rows leave,
  //   in a message for each expert, whose size every rank knows.
  enum class Way { indexed, copied, by_expert };
  // Sends rows to the experts. back: also returns the rows that the experts leave, and sums them at
  // their tokens. by_expert needs host buffers.
  void to_experts(Way way, bool back);
  // Throws Failure if copied and by_expert differ.
  void compare_ways();

  // Number of rows that this rank sends to others, and bytes of one row.
  Index sent_rows();
  Index row_bytes() const { return sy::row_bytes(x_); }

 private:
  void build_layout();
  DispatchHandle receive();
  void once_to_each_rank(bool copied, bool back);
  void once_to_each_expert(bool back);
  ConstView identity(Index n);
  std::vector<std::byte> found() const;

  Device& device_;
  const Mesh& mesh_;
  Comm& group_;
  ExpertPlacement placement_;
  Index T_, k_, E_, sent_ = -1;
  Arena arena_;
  Tensor chosen_, dispatch_mask_, x_, y_, weights_, identity_, plain_;
  DispatchLayout dispatch_layout_;
  ConstView received_, received_weights_, physical_experts_;
  Index first_column_ = 0;  // of the values in received_
  bool doubles_ = false;    // experts double their rows: this shows whose rows return
  // [R, D], [R, 1] of the latest way. rows_ has no values if they were not copied.
  View rows_, row_weights_;
};

}  // namespace sy::bench
