// Rows to the ranks that hold their experts, and back.
//
// Each of the P ranks of the expert-parallel group has rows sorted by (expert, token); experts are dealt out in order,
// E / P to a rank. Dispatch sends each rank its experts' rows; they arrive sorted by (source, expert, token) and are put
// in order by (expert, source, token), which is (expert, global token index), since the ranks hold their tokens in rank
// order. Combine is the way back. Both are adjoint to each other, so backward calls them in turn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dist/comm.h"
#include "kernels/arena.h"
#include "kernels/backend.h"

namespace sy {

// Who sends how many rows to whom. Pure.
struct DispatchPlan {
  std::vector<Index> send, receive;   // [P] rows to and from each rank
  Index sent = 0, received = 0;       // their sums
  std::vector<std::int32_t> offsets;  // [E / P + 1] first received row of each local expert, once in order
  std::vector<std::int32_t> order;    // [received] row in order -> row as it arrived
  std::vector<std::int32_t> inverse;  // [received] row as it arrived -> row in order
  bool in_order = true;               // order is the identity
};
// counts: [P, E] rows that each rank has for each expert.
DispatchPlan plan_dispatch(std::span<const std::int32_t> counts, int ranks, int rank, Index experts);

class Exchange {
 public:
  // counts: [E] the rows that this rank has for each expert. Collective over `ep`, which must outlive this.
  // The index tensors of the plan are taken from `arena`.
  Exchange(Backend& backend, Comm& ep, std::span<const std::int32_t> counts, Arena& arena);

  Index sent() const { return plan_.sent; }
  Index received() const { return plan_.received; }
  ConstView offsets() const { return offsets_; }   // [E / P + 1] i32
  bool local() const { return ep_->size() == 1; }  // dispatch and combine then return their argument

  // rows: [sent, ...] by (expert, token) -> [received, ...] by (local expert, global token), taken from `arena`.
  View dispatch(View rows, Arena& arena, Arena& scratch) const;
  // The way back: rows: [received, ...] -> [sent, ...].
  View combine(View rows, Arena& arena, Arena& scratch) const;

 private:
  Backend* backend_;
  Comm* ep_;
  DispatchPlan plan_;
  View offsets_, order_, inverse_;
};

}  // namespace sy
