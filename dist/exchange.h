// Tokens to the ranks that hold their experts, and what these make of them back.
//
// The P ranks of the expert-parallel group hold a run of places each, or a part of one (ExpertSplit). A token travels once to
// each rank that has any of its experts, however many; with it go the places of all its experts and their weights, from which the
// rank finds out what is for it. Copies leave in the order of (rank, token) and so arrive by (source, token), which is the order of the
// global tokens, as the ranks hold their tokens in rank order. They are used where they lie: no pass puts them in order. Back
// goes one row for each copy, the sum over the rank's experts, and the token's rank adds up what comes from several ranks.
// Both ways are adjoint to each other, so backward takes them in turn.
//
// On one rank nothing travels and nothing is copied: what arrives is what would leave.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "dist/comm.h"
#include "kernels/arena.h"
#include "kernels/backend.h"

namespace sy {

// Who sends how many tokens to whom, and how many rows they are there. Pure.
struct DispatchPlan {
  std::vector<Index> send, receive;  // [P] copies of tokens to and from each rank
  Index sent = 0, received = 0;      // their sums
  std::vector<std::int32_t>
      offsets;  // [E / owners + 1] the first row of each of this rank's places, and how many rows there are
};
// counts: [P, P + E] of each rank, those of Backend::plan_sends.
DispatchPlan plan_dispatch(std::span<const std::int32_t> counts, const ExpertSplit& split, int rank);

// What Backend::plan_sends says about copies of T tokens. tokens, slots: none on one rank.
struct Sends {
  View tokens;  // [n] i32 copy -> token
  View slots;   // [T, n / T] i32 the token's copies
  View counts;  // [P + E] i32
};

// One trip of a layer's tokens to the experts and back, in steps, so that something else can run beside the travelling:
//   Exchange x(...);             the counts are on their way to the host
//   ... = x.copies(rows, ...);   what is to leave
//   x.plan();                    the host waits for the counts; expert_rows() is known from here on
//   ... = x.dispatch(...);       under way
//   x.finish();                  and there
//
// plan() is the one place within a step where the host waits for a device, since NCCL and cuBLAS must be told the numbers
// of rows: the device has nothing to do from the end of the counts (and of what was given to it meanwhile) until the host has
// started the next kernel; estimated, not measured, at 10 to 20 microseconds for each MoE layer and pass.
class Exchange {
 public:
  // `split` has as many ranks as `group`, which must outlive this. Collective. Of `sends`, tokens and slots are kept. What is
  // gathered is taken from `arena`, and must stay until plan().
  Exchange(Backend& backend, Comm& group, const ExpertSplit& split, const Sends& sends, Arena& arena);

  void plan();

  bool local() const { return group_->size() == 1; }
  Index first_place() const { return group_->rank() / split_.parts * (std::ssize(plan_.offsets) - 1); }
  const std::vector<std::int32_t>& offsets() const { return plan_.offsets; }  // of DispatchPlan
  Index rows() const { return plan_.offsets.back(); }                         // R of this rank's experts
  Index sent() const { return plan_.sent; }

  // x: [T, N] -> [n, N] a row for each copy that may leave, taken from `arena`; x itself on one rank.
  ConstView copies(ConstView x, Arena& arena) const;

  // The buffer of copies, and where what arrives in it lies.
  struct Leaving {
    ConstView copies;  // [n or more, N] as copies() makes them
    Arena& arena;
  };
  // Sends the copies: -> [A, N] of each, A tokens of all ranks, valid after finish(). Until then the copies must stay. Sends what
  // the backend was given before the call.
  std::vector<ConstView> dispatch(std::initializer_list<Leaving> leaving);

  // y: [T, N] = from + the sum of x over the rows that a token became, on this rank and on others.
  struct Sum {
    ConstView x;  // [R, N], or [R, 1] where each of the N elements is the sum over rows of its own
    ConstView
        slots;  // [A, j] i32 the rows that are summed for each arrived token; [A * N, j] those for each of its elements
    ConstView from;  // [T, N], which may be y; or none
    View y;
  };
  // The way back: the sums over this rank's rows leave at once; y is complete after finish(). Takes from `scratch` what must stay
  // until then.
  void combine(std::initializer_list<Sum> sums, Arena& scratch);
  void finish();

 private:
  struct Returning {
    View copies;  // [sent, N]
    ConstView from;
    View y;
  };
  void start(std::span<const InOut> buffers, std::span<const Index> send, std::span<const Index> receive,
             const char* part);

  Backend* backend_;
  Comm* group_;
  ExpertSplit split_;
  Sends sends_;
  DispatchPlan plan_;
  View counts_;  // [P, P + E] of every rank
  std::vector<Returning> returning_;
};

}  // namespace sy
