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
  bool in_order = true;               // rows arrive as they are to lie
};
// counts: [P, E] rows that each rank has for each expert.
DispatchPlan plan_dispatch(std::span<const std::int32_t> counts, int ranks, int rank, Index experts);

// One trip of a layer's rows to the experts and back, in steps, so that something else can run beside the travelling:
//   Exchange x(...);             the counts are on their way to the host
//   x.plan(arena);               the host waits for the counts; sent(), received() and expert_rows() are known from here on
//   v = x.dispatch(rows, ...);   under way
//   x.finish();                  v holds the rows
//
// plan() is the one place within a step where the host waits for a device, since NCCL and cuBLAS must be told the numbers
// of rows: the device has nothing to do from the end of the counts (and of what was given to it meanwhile) until the host has
// started the next kernel; estimated, not measured, at 10 to 20 microseconds for each MoE layer and pass.
class Exchange {
 public:
  // counts: [E] i32 the rows that this rank has for each expert, on the backend. Collective over `ep`, which must outlive
  // this. What it keeps is taken from `arena`.
  Exchange(Backend& backend, Comm& ep, ConstView counts, Arena& arena);

  void plan(Arena& arena);

  Index sent() const { return plan_.sent; }
  Index received() const { return plan_.received; }
  ExpertRows expert_rows() const { return {offsets_, plan_.offsets.data()}; }
  bool local() const { return ep_->size() == 1; }  // dispatch and combine then return their argument

  // rows: [sent, ...] by (expert, token) -> [received, ...] by (local expert, global token), taken from `arena` and valid
  // after finish(). Until then `rows` and what is taken from `scratch` must stay. Sends what the backend was given before
  // the call.
  View dispatch(View rows, Arena& arena, Arena& scratch);
  // The way back: rows: [received, ...] -> [sent, ...].
  View combine(View rows, Arena& arena, Arena& scratch);
  void finish();

 private:
  struct Arrival {
    View arrived, out;
  };
  Backend* backend_;
  Comm* ep_;
  DispatchPlan plan_;
  View counts_;                     // [P, E] of every rank
  View offsets_, order_, inverse_;  // order_arrivals
  std::vector<Arrival> arrivals_;   // to be put in order
};

}  // namespace sy
