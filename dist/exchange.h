// Token dispatcher: sends tokens to the ranks of their experts, and combines the experts' outputs.
//
// Each of the P ranks of the expert-parallel group holds equally many consecutive physical experts,
// or an etp shard of them (ExpertSplit). Dispatch sends a token once to each rank that holds any of
// its experts. The physical experts and weights of all its choices go with it.
//
// Copies are ordered by (destination, token) on the sender, and by (source, token) on the receiver.
// The latter is the order of the global tokens, because ranks hold their tokens in rank order. The
// received tokens are not sorted by expert. (One message per expert was measured: it saves at most
// 5 % of a layer, see tests/bench/RESULTS.md.)
//
// Combine returns one row per copy: the sum over the rank's experts. The token's rank sums the rows
// that it receives. Dispatch and combine are adjoint, so that backward swaps them.
//
// If the ranks fill several nodes (Topology), dispatch is hierarchical:
// - Between nodes, a token goes once to each node that holds any of its experts. It goes to the
//   rank with the same index within the node as its own rank.
// - Within the node, that rank forwards it in the same way. The receiver has the tokens ordered by
//   the source's (index within its node, node, token).
// - Combine sums the rows of a node's ranks on the node. One row per copy crosses the network.
//
// On one rank nothing is sent or copied: the received tokens are the views that would be sent.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "kernels/backend.h"

namespace sy {

// Physical expert, rank and node of each expert, within the expert_ranks() of a layout.
// Pure geometry.
struct ExpertRanks {
  ExpertSplit split;
  Topology topology;

  // places: as in ExpertSplit.
  ExpertRanks(const Layout& layout, ConstView places)
      : split{layout.ep, layout.etp, places}, topology(layout.experts_topology()) {}
  // True if dispatch is hierarchical.
  bool by_node() const { return topology.nodes > 1; }
  // Number of destinations whose token counts are exchanged:
  // nodes (if dispatch is hierarchical) and ranks.
  Index told() const { return (by_node() ? topology.nodes : 0) + split.ranks(); }
  // Returns the partition of the experts among the destinations of the first hop: nodes or ranks.
  ExpertSplit first_split() const { return by_node() ? ExpertSplit{topology.nodes, 1, split.places} : split; }
  // Returns the partition of a node's physical experts among its ranks. experts: E.
  ExpertSplit node_split(int node, Index experts) const {
    return {split.owners / topology.nodes, split.parts, {}, node * (experts / topology.nodes)};
  }
};

// Send and receive counts of one dispatch all-to-all (hop), as seen by one rank.
struct HopPlan {
  std::vector<Index> send, receive;  // copies of tokens to and from each rank of the hop's group
  Index sent = 0, received = 0;      // their sums
};
// Counts of all hops of a dispatch, and row offsets of the rank's experts.
struct DispatchPlan {
  // One hop; two if dispatch is hierarchical: between nodes, then within the node.
  std::vector<HopPlan> hops;
  // [E / owners + 1] first row of each local physical expert, then the number of rows
  std::vector<std::int32_t> offsets;
};
// Computes the counts of one rank of Mesh::experts. Pure function.
// counts: [P, N + P + E], Sends::counts of each of the P ranks.
DispatchPlan plan_dispatch(std::span<const std::int32_t> counts, const ExpertRanks& of, int rank);

// Dispatch layout of T tokens with k of E experts each:
// copies per destination, before the exchange.
struct Sends {
  View tokens;  // [n] i32, copy -> token; empty on one rank
  View slots;   // [T, n / T] i32, token -> its copies; empty on one rank
  View places;  // [T, k] i32 physical expert of each assignment; -1 if dropped
  // [N + P + E] i32: copies for each of N nodes, copies for each of P ranks, assignments of each
  // physical expert. N is 0 if dispatch is not hierarchical.
  View counts;

  Sends() = default;
  // Allocates `tokens` and `slots` from `kept`, and the other views from `scratch`.
  Sends(const ExpertRanks& ranks, Index T, Index k, Index E, Arena& kept, Arena& scratch);
  // Fills the views and `kept` by Backend::plan_sends.
  //   experts, keep: [T, k] i32 logical experts and dispatch mask
  //   kept: [E] i32, output: dispatched assignments of each logical expert
  void plan(Backend& backend, const ExpertRanks& ranks, ConstView experts, ConstView keep, View kept,
            Arena& scratch) const;
};

// Dispatch and combine of one layer, in steps, so that other work can overlap with them:
//   Exchange x(...);             starts the exchange of counts and their copy to the host
//   ... = x.copies(rows, ...);   packs the copies
//   x.plan(...);                 the host waits for the counts; afterwards rows() is known
//   ... = x.dispatch(...);       starts the all-to-all
//   x.finish();                  waits for it
// If dispatch is hierarchical, the hop between nodes overlaps. The hop within the node runs in
// finish() of a dispatch, and in combine().
//
// plan() has the only host wait for the device within a step: NCCL and cuBLAS take row counts on
// the host. The device idles from the end of its queue until the host has started the next kernel.
// The estimate (not measured) is 10 to 20 microseconds per MoE layer and pass.
class Exchange {
 public:
  // Starts the exchange of counts.
  // Collective over mesh.experts, as are dispatch(), combine() and finish().
  // `mesh` and the views `tokens` and `slots` of `sends` must outlive this object.
  // The view `places` of `sends` and the memory taken from `scratch` must stay while places() is
  // used, at least until the first finish().
  // Until plan(), the backend must start no other read (Backend::begin_read).
  Exchange(Backend& backend, const Mesh& mesh, const ExpertRanks& ranks, const Sends& sends, Arena& scratch);

  // Waits for the counts of all ranks, and computes the splits of the hops.
  // Memory taken from `kept` must live as long as this object,
  // memory from `scratch` until the first finish().
  void plan(Arena& kept, Arena& scratch);

  // True if the group has one rank.
  bool local() const { return group_->size() == 1; }
  // First physical expert of this rank. Valid after plan(), as are offsets(), rows() and sent().
  Index first_place() const { return group_->rank() / ranks_.split.parts * (std::ssize(offsets_) - 1); }
  // DispatchPlan::offsets.
  const std::vector<std::int32_t>& offsets() const { return offsets_; }
  // R, number of rows of this rank's experts.
  Index rows() const { return offsets_.back(); }
  // Number of copies in the send buffer of the first hop, including those for this rank itself.
  // 0 on one rank.
  Index sent() const { return local() ? 0 : hops_.front().plan.sent; }

  // Packs the copies of x for the first hop: [T, N] -> [n, N], taken from `arena`.
  // n is the largest possible number of copies (Sends). Rows from sent() on are undefined.
  // Returns x on one rank.
  ConstView copies(ConstView x, Arena& arena) const;

  // A send buffer, and the arena of its receive buffer.
  struct Leaving {
    ConstView copies;  // [n, N], made by copies(); the first sent() rows are sent
    Arena& arena;
  };
  // Starts the all-to-all of the send buffers. The first call sends the physical experts too.
  // Returns a receive buffer [A, N] for each send buffer, valid after finish(). A is the number of
  // received tokens. On one rank, these are the send buffers.
  // The send buffers and the memory taken from `scratch` must stay until finish().
  // The all-to-all waits for compute that was enqueued before this call.
  std::vector<ConstView> dispatch(std::initializer_list<Leaving> leaving, Arena& scratch);
  // [A, k] i32 physical experts of the received tokens; -1 if dropped.
  // Valid after the first finish(), while the scratch memory stays. On one rank valid at once.
  ConstView places() const { return places_; }

  // y = from + the sum of x over the rows of each token, on all ranks. y: [T, N].
  struct Sum {
    ConstView x;  // [R, N]; [R, 1] if each of the N elements has its own rows
    // [A, j] i32 rows that are summed for each received token; or [A * N, j],
    // for each of its elements
    ConstView slots;
    ConstView from;  // [T, N], may be y; empty if nothing is added
    View y;
  };
  // Sums this rank's rows and starts the return of the sums. y is complete after finish().
  // The memory taken from `scratch` must stay until then. Requires a finished dispatch.
  void combine(std::initializer_list<Sum> sums, Arena& scratch);
  // Completes the dispatch or the combine in flight.
  void finish();

 private:
  // An all-to-all of dispatch; combine uses it in the reverse direction.
  struct Hop {
    Comm* group;
    View tokens, slots;  // as in Sends, for the tokens on the sending side
    HopPlan plan;
  };
  // Buffers of the hop within the node: received from other nodes, packed copies, output.
  struct SentOn {
    View there, copies, out;
  };
  // A combine in flight.
  struct Returning {
    View copies;  // [sent, N]
    ConstView from;
    View y;
  };
  void start(Comm& group, std::span<const InOut> buffers, std::span<const Index> send, std::span<const Index> receive,
             const char* part);
  void send_on();
  ExpertSplit node_split() const { return ranks_.node_split(ranks_.topology.node_of(group_->rank()), experts_); }

  Backend* backend_;
  Comm* group_;
  ExpertRanks ranks_;
  Index experts_;  // E
  View counts_;    // [P, N + P + E] Sends::counts of all ranks
  std::vector<std::int32_t> offsets_;
  std::vector<Hop> hops_;    // as in DispatchPlan; empty on one rank
  ConstView places_;         // physical experts of the tokens to send, then of the received tokens
  bool has_places_ = false;  // true after the first dispatch
  struct {
    View places, counts, kept;
  } on_node_;  // outputs of Backend::plan_sends for the hop within the node; empty after it
  std::vector<SentOn> sent_on_;
  std::vector<Returning> returning_;
};

}  // namespace sy
