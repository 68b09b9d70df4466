// Tokens to the ranks that hold their experts, and what these make of them back.
//
// The P ranks of the expert-parallel group hold a run of places each, or a part of one (ExpertSplit). A token travels once to
// each rank that has any of its experts, however many; with it go the places of all its experts and their weights, from which the
// rank finds out what is for it. Copies leave in the order of (rank, token) and so arrive by (source, token), which is the order of the
// global tokens, as the ranks hold their tokens in rank order. They are used where they lie: no pass puts them in order. (A message
// for each expert straight to its place was measured, too, and is better by 5 % of a layer at most: tests/bench/RESULTS.md.) Back
// goes one row for each copy, the sum over the rank's experts, and the token's rank adds up what comes from several ranks.
// Both ways are adjoint to each other, so backward takes them in turn.
//
// Where the ranks fill several nodes (Topology), that is done twice. First a token travels once to each node that has any of its
// experts, to the rank that stands on that node where the token's own rank stands on its own. There what arrived is sent on in the
// same way among the ranks of the node, and arrives by (place on its node, node, token) of its source. Back, the sums of a
// node's ranks are added up on the node, and one row for each copy crosses the network.
//
// On one rank nothing travels and nothing is copied: what arrives is what would leave.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "kernels/backend.h"

namespace sy {

// Where the experts are: in which place, on which of the ranks that hold them all, and on which node. Pure.
struct ExpertRanks {
  ExpertSplit split;
  Topology topology;

  ExpertRanks(const Layout& layout, ConstView places)
      : split{layout.ep, layout.etp, places}, topology(layout.experts_topology()) {}
  bool by_node() const { return topology.nodes > 1; }
  // The nodes and ranks of which each is told how many tokens go there.
  Index told() const { return (by_node() ? topology.nodes : 0) + split.ranks(); }
  // Whom tokens go to first: the ranks, or the nodes.
  ExpertSplit first_split() const { return by_node() ? ExpertSplit{topology.nodes, 1, split.places} : split; }
  // Whom they go to on a node: the ranks that share the experts in its places. experts: E.
  ExpertSplit node_split(int node, Index experts) const {
    return {split.owners / topology.nodes, split.parts, {}, node * (experts / topology.nodes)};
  }
};

// Who sends how many tokens to whom, and how many rows they are there. Pure.
struct HopPlan {
  std::vector<Index> send, receive;  // copies of tokens to and from each rank
  Index sent = 0, received = 0;      // their sums
};
struct DispatchPlan {
  // One to every rank; or two, over the nodes and among the ranks of this one.
  std::vector<HopPlan> hops;
  // [E / owners + 1] the first row of each of this rank's places, and how many rows there are
  std::vector<std::int32_t> offsets;
};
// counts: those of Sends, of each of the P ranks.
DispatchPlan plan_dispatch(std::span<const std::int32_t> counts, const ExpertRanks& of, int rank);

// What is known of T tokens with k experts of E each before they travel.
struct Sends {
  View tokens;  // [n] i32 copy -> token; none on one rank, as the next one
  View slots;   // [T, n / T] i32 the token's copies
  View places;  // [T, k] i32 the place of each choice's expert, or -1 where dropped
  // [N + P + E] i32 the copies that go to each of N nodes (where there is one alone, N is 0) and to each rank, and the
  // assignments of each place.
  View counts;

  Sends() = default;
  // kept: where tokens and slots are taken from; the rest is taken from scratch.
  Sends(const ExpertRanks& ranks, Index T, Index k, Index E, Arena& kept, Arena& scratch);
  // Backend::plan_sends for the ranks. experts, keep: [T, k], kept: [E], as there.
  void plan(Backend& backend, const ExpertRanks& ranks, ConstView experts, ConstView keep, View kept,
            Arena& scratch) const;
};

// One trip of a layer's tokens to the experts and back, in steps, so that something else can run beside the travelling:
//   Exchange x(...);             the counts are on their way to the host
//   ... = x.copies(rows, ...);   what is to leave
//   x.plan(...);                 the host waits for the counts; rows() is known from here on
//   ... = x.dispatch(...);       under way
//   x.finish();                  and there
// What crosses the network is under way meanwhile; what travels on a node waits for it.
//
// plan() is the one place within a step where the host waits for a device, since NCCL and cuBLAS must be told the numbers
// of rows: the device has nothing to do from the end of the counts (and of what was given to it meanwhile) until the host has
// started the next kernel; estimated, not measured, at 10 to 20 microseconds for each MoE layer and pass.
class Exchange {
 public:
  // `mesh` must outlive this. Collective over the experts' ranks. Of `sends`, tokens and slots are kept. What is gathered is taken
  // from `scratch`, and must stay until the first dispatch.
  Exchange(Backend& backend, const Mesh& mesh, const ExpertRanks& ranks, const Sends& sends, Arena& scratch);

  // Tables that must stay as long as the trip are taken from `kept`; scratch: as above, until the first finish().
  void plan(Arena& kept, Arena& scratch);

  bool local() const { return group_->size() == 1; }
  Index first_place() const { return group_->rank() / ranks_.split.parts * (std::ssize(offsets_) - 1); }
  const std::vector<std::int32_t>& offsets() const { return offsets_; }  // of DispatchPlan
  Index rows() const { return offsets_.back(); }                         // R of this rank's experts
  Index sent() const { return local() ? 0 : hops_.front().plan.sent; }   // copies of its tokens, over the first hop

  // x: [T, N] -> [n, N] a row for each copy that may leave, taken from `arena`; x itself on one rank.
  ConstView copies(ConstView x, Arena& arena) const;

  // The buffer of copies, and where what arrives in it lies.
  struct Leaving {
    ConstView copies;  // [n or more, N] as copies() makes them
    Arena& arena;
  };
  // Sends the copies, and the first time the places of their experts: -> [A, N] of each, A tokens of all ranks, valid after
  // finish(). Until then the copies must stay, and what is taken from `scratch`. Sends what the backend was given before the call.
  std::vector<ConstView> dispatch(std::initializer_list<Leaving> leaving, Arena& scratch);
  // [A, k] i32 as in Sends, of what arrived first; valid as that is, while the scratch memory stays.
  ConstView places() const { return places_; }

  // y: [T, N] = from + the sum of x over the rows that a token became, on this rank and on others.
  struct Sum {
    ConstView x;  // [R, N], or [R, 1] where each of the N elements is the sum over rows of its own
    // [A, j] i32 the rows that are summed for each arrived token; [A * N, j] those for each of its elements
    ConstView slots;
    ConstView from;  // [T, N], which may be y; or none
    View y;
  };
  // The way back: the sums over this rank's rows leave at once; y is complete after finish(). Takes from `scratch` what must stay
  // until then.
  void combine(std::initializer_list<Sum> sums, Arena& scratch);
  void finish();

 private:
  // Copies go from rank to rank of a group, and back.
  struct Hop {
    Comm* group;
    View tokens, slots;  // as in Sends, of what is there before
    HopPlan plan;
  };
  // What arrives on the node, is copied, and arrives where it should.
  struct SentOn {
    View there, copies, out;
  };
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
  View counts_;    // of Sends, of every rank
  std::vector<std::int32_t> offsets_;
  std::vector<Hop> hops_;    // none on one rank, otherwise those of DispatchPlan
  ConstView places_;         // of what leaves, then of what arrived
  bool has_places_ = false;  // of what arrived
  struct {
    View places, counts, kept;
  } on_node_;  // for Backend::plan_sends, until what goes on is planned
  std::vector<SentOn> sent_on_;
  std::vector<Returning> returning_;
};

}  // namespace sy
