// Token dispatcher: sends tokens to the ranks of their experts, and combines the experts' outputs.
//
// Each of the P ranks of the expert-parallel group holds equally many consecutive physical experts,
// or an etp shard of them (ExpertPartition). Dispatch sends a token once to each rank that holds
// any of its experts. The physical experts and weights of all its choices go with it, in front of
// its values (TokenRow): there is one message per destination.
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
#include "kernels/device.h"
#include "kernels/ops/dispatch.h"

namespace sy {

// Partition of the experts among the ranks and nodes of a layout's expert_ranks().
// Pure geometry.
struct ExpertPlacement {
  ExpertPartition partition;
  Topology topology;
  // Group limit of the router, as in ExpectedRouting.
  Index groups = 1, topk_groups = 1;

  // logical_to_physical: as in ExpertPartition.
  ExpertPlacement(const Layout& layout, ConstView logical_to_physical)
      : partition{layout.ep, layout.etp, logical_to_physical}, topology(layout.expert_topology()) {}
  // Returns the operand of ops::DispatchLayout.
  // tokens_per_expert: [E] i32 of the first hop; empty for the first hop itself.
  ExpectedRouting expected_routing(ConstView tokens_per_expert) const {
    return {groups, topk_groups, partition.logical_to_physical, tokens_per_expert};
  }
  // True if dispatch is hierarchical.
  bool is_hierarchical() const { return topology.nodes > 1; }
  // Returns the partition of the experts among the destinations of the first hop: nodes or ranks.
  ExpertPartition internode_partition() const {
    return is_hierarchical() ? ExpertPartition{topology.nodes, 1, partition.logical_to_physical} : partition;
  }
  // Returns the partition of a node's physical experts among its ranks. experts: E.
  ExpertPartition intranode_partition(int node, Index experts) const {
    return {partition.ep / topology.nodes, partition.etp, {}, node * (experts / topology.nodes)};
  }
};

// Input and output splits of one dispatch all-to-all (hop), as seen by one rank.
struct HopSplits {
  // Copies of tokens to and from each rank of the hop's group.
  std::vector<Index> input_splits, output_splits;
  Index num_sent = 0, num_received = 0;  // their sums
};
// Splits of all hops of a dispatch, and row offsets of the rank's experts.
struct DispatchSplits {
  // One hop; two if dispatch is hierarchical: between nodes, then within the node.
  std::vector<HopSplits> hops;
  // [E / ep + 1] first row of each local physical expert, then the number of rows
  std::vector<std::int32_t> offsets;
};

// Counts from which one rank of Mesh::expert_group computes its splits: views of one i32 buffer, on
// the device or on the host. A row is for one destination, as in ops::DispatchLayout: the copies
// for it, then the assignments of each of its E / N or E / ep physical experts.
struct DispatchCounts {
  View buffer;    // all of the following; `to_ranks` alone on one rank
  View to_ranks;  // [P, 1 + E / ep] of this rank, for each rank
  // [P, 1 + E / ep] of each rank, for this rank; `to_ranks` on one rank
  View from_ranks;
  // The others are empty if dispatch is not hierarchical. `Peers` are the ranks with this rank's
  // index in each of the N nodes.
  View to_nodes;    // [N, 1 + E / N] of this rank, for each node
  View from_peers;  // [N, 1 + E / N] of each peer, for this rank's node
  // [P, 1 + E / ep] of each peer, for each rank of this rank's node
  View of_peers;

  // Number of elements of `buffer` for E experts.
  static Index elements(const ExpertPlacement& placement, Index E);
  // memory: [elements()] i32
  DispatchCounts(const ExpertPlacement& placement, Index E, View memory);
};
// Computes the splits of a rank. Pure function. counts: in host memory.
// 2^31 rows or more are an internal error.
DispatchSplits dispatch_splits(const DispatchCounts& counts, const Topology& topology);

// Copies that dispatch sends to each destination, for T tokens with k of E experts each.
// The views `tokens` and `row_id_map` are of the first hop. It has at most n copies:
// T * min(k, ep) * etp, or T * min(k, nodes) if dispatch is hierarchical.
struct DispatchLayout {
  View tokens;             // [n] i32 token of each copy, then -1; empty on one rank
  View row_id_map;         // [T, n / T] i32 copies of each token, then -1; empty on one rank
  View physical_experts;   // [T, k] i32 physical expert of each assignment; -1 if dropped
  View counts;             // DispatchCounts::buffer, with the counts of this rank
  View tokens_per_expert;  // [E] i32 dispatched assignments of each logical expert

  DispatchLayout() = default;
  // Allocates `tokens` and `row_id_map` from `saved`, and `physical_experts` and `counts` from
  // `scratch`. tokens_per_expert: memory of that view, which must stay as long as the others.
  DispatchLayout(const ExpertPlacement& placement, Index T, Index k, View tokens_per_expert, Arena& saved,
                 Arena& scratch);
  // Fills the views by ops::DispatchLayout.
  //   experts: [T, k] i32 logical experts
  //   dispatch_mask: [T, k] i32; 0 if the assignment is dropped, otherwise 1
  //   scratch: memory of this call alone
  void build(Device& device, const ExpertPlacement& placement, ConstView experts, ConstView dispatch_mask,
             Arena& scratch) const;
};

// The DispatchCounts of a layout on their way to the host (TokenDispatcher::exchange_counts).
struct [[nodiscard]] CountExchange {
  const DispatchLayout& layout;
};

// A send buffer, or a receive buffer. On one rank it refers to the tokens themselves.
struct PackedTokens {
  ConstView rows;          // [n, N]; of a send buffer, the first num_sent() rows are sent
  Index k = 0;             // assignments of a token in the metadata; 0 without metadata
  Index first_column = 0;  // of the values in a row
  // [T, k] metadata on one rank, or of a receive buffer; otherwise empty
  ConstView physical_experts{}, weights{};
};

// Operands of one combine: y = addend + the sum of each token's rows of x, over all ranks.
struct CombineSum {
  // [R, N]; or [R, 1], if each of the N elements of a received token sums rows of its own
  ConstView x;
  // [A, j] i32 rows of x that are summed for each received token, or -1. If x is [R, 1]: [A * N, j]
  // rows for each of its elements.
  ConstView row_id_map;
  ConstView addend;  // [T, N], may be y; empty if nothing is added
  View y;            // [T, N]
};

class DispatchHandle;

// A dispatch in flight. If it is destroyed before wait(), the received tokens are undefined.
// The DispatchHandle must outlive it.
class [[nodiscard]] PendingDispatch {
 public:
  PendingDispatch(PendingDispatch&&) = default;
  // [A, N] receive buffer, valid after wait(). A is the number of received tokens. On one rank it
  // is the send buffer, valid at once. The values of a token begin at `first_column`.
  ConstView received() const { return received_.rows; }
  Index first_column() const { return received_.first_column; }
  // [A, k] metadata of the received tokens; empty if it was not sent. The physical expert of a
  // dropped assignment is -1. Valid like received(), while the scratch memory stays.
  ConstView physical_experts() const { return received_.physical_experts; }
  ConstView weights() const { return received_.weights; }
  // Compute enqueued after this call waits for the received tokens. No-op if called before.
  void wait();

 private:
  friend DispatchHandle;
  explicit PendingDispatch(DispatchHandle& handle) : handle_(&handle) {}
  void forward_intranode();

  DispatchHandle* handle_;
  Work first_hop_;
  bool waited_ = false;
  PackedTokens received_;
  struct {
    View rows, physical_experts, weights;  // memory of the results; empty on one rank
  } output_;
  // Buffers of the hop within the node: tokens received from other nodes, their physical experts,
  // and packed copies. All are empty if dispatch is not hierarchical.
  struct {
    View received, physical_experts, packed;
  } forwarding_;
};

// A combine in flight. If it is destroyed before wait(), the sums are undefined.
// The DispatchHandle must outlive it.
class [[nodiscard]] PendingCombine {
 public:
  PendingCombine(PendingCombine&&) = default;
  // Sums the returned rows into CombineSum::y, after they have arrived. No-op if called before.
  void wait();

 private:
  friend DispatchHandle;
  struct Returned {
    View rows;  // [num_sent, N]
    ConstView addend;
    View y;
  };
  explicit PendingCombine(DispatchHandle& handle) : handle_(&handle) {}

  DispatchHandle* handle_;
  Work last_hop_;
  std::vector<Returned> returned_;  // empty on one rank
};

// Dispatches and combines the tokens of one layer, by their splits.
// Functions that start communication are collective over mesh.expert_group. If dispatch is
// hierarchical, only the hop between nodes overlaps with compute. The hop within the node runs in
// PendingDispatch::wait(), and in combine().
class DispatchHandle {
 public:
  // True if mesh.expert_group has one rank: nothing is sent.
  bool local() const { return group_->size() == 1; }
  // First physical expert of this rank.
  Index first_physical_expert() const { return group_->rank() / placement_.partition.etp * (std::ssize(offsets_) - 1); }
  // DispatchSplits::offsets.
  const std::vector<std::int32_t>& offsets() const { return offsets_; }
  // R, number of rows of this rank's experts.
  Index rows() const { return offsets_.back(); }
  // Number of copies in the send buffer of the first hop, including those for this rank itself.
  // 0 on one rank.
  Index num_sent() const { return local() ? 0 : hops_.front().splits.num_sent; }
  // As TokenDispatcher::pack, without metadata.
  PackedTokens pack(ConstView x, Arena& arena) const;

  // Starts the all-to-all of the tokens. The receive buffer is allocated from `arena`.
  // In the first call of a handle the tokens must have metadata. From the metadata the receiver
  // computes its rows, and the copies for the hop within the node.
  // The send buffer and the memory allocated from `scratch` must stay until wait().
  // The all-to-all waits for compute that was enqueued before this call.
  PendingDispatch dispatch(const PackedTokens& tokens, Arena& arena, Arena& scratch);
  // Sums this rank's rows and starts the return of the sums. On one rank it computes CombineSum::y.
  // The memory allocated from `scratch` must stay until wait().
  PendingCombine combine(std::initializer_list<CombineSum> sums, Arena& scratch);

 private:
  friend class TokenDispatcher;
  friend PendingDispatch;
  friend PendingCombine;
  // An all-to-all of dispatch; combine uses it in the reverse direction.
  struct Hop {
    Comm* group;
    View tokens, row_id_map;  // as in DispatchLayout, for the tokens on the sending side
    HopSplits splits;
  };
  DispatchHandle(Device& device, Comm& group, const ExpertPlacement& placement, Index experts)
      : device_(&device), group_(&group), placement_(placement), experts_(experts) {}
  ExpertPartition intranode_partition() const {
    return placement_.intranode_partition(placement_.topology.node_of(group_->rank()), experts_);
  }

  Device* device_;
  Comm* group_;
  ExpertPlacement placement_;
  Index experts_;  // E
  std::vector<std::int32_t> offsets_;
  std::vector<Hop> hops_;        // as in DispatchSplits; empty on one rank
  ConstView tokens_per_expert_;  // of the DispatchLayout
  // Outputs of ops::DispatchLayout for the hop within the node, in scratch memory.
  struct {
    View physical_experts, counts, tokens_per_expert;
  } intranode_outputs_;
};

// Makes the DispatchHandle of each layer. The steps of a layer, so that other work can overlap:
//   CountExchange counts = dispatcher.exchange_counts(layout);
//   PackedTokens packed = dispatcher.pack(layout, ...);
//   DispatchHandle handle = dispatcher.finalize(counts, ...);    the host waits for the counts
//   PendingDispatch tokens = handle.dispatch(packed, ...);
//   tokens.wait();
//   PendingCombine sums = handle.combine(...);
//   sums.wait();
//
// finalize() has the only host wait for the device within a pass: device collectives and cuBLAS
// need row counts on the host. The device idles from the end of its queue until the host has
// started the next kernel. The estimate (not measured) is 10 to 20 microseconds per MoE layer and
// pass.
class TokenDispatcher {
 public:
  // `mesh` must outlive this object and its handles.
  TokenDispatcher(Device& device, const Mesh& mesh, const ExpertPlacement& placement);

  // True if mesh.expert_group has one rank: nothing is sent.
  bool local() const { return group_->size() == 1; }
  // Exchanges the counts of `layout` by an all-to-all, and starts their copy to the host. If
  // dispatch is hierarchical, two more all-to-alls are between the nodes.
  // Collective over mesh.expert_group.
  // `layout` must outlive the result.
  // Until finalize(), the device must start no other read (Device::begin_read).
  CountExchange exchange_counts(const DispatchLayout& layout);

  // Packs the copies of x for the first hop, with their metadata. The result is from `arena`.
  // Shapes: x [T, D], weights [T, k], result [n, TokenRow::columns()].
  // n is the largest possible number of copies (DispatchLayout). Rows from
  // DispatchHandle::num_sent() on are undefined.
  // On one rank the result refers to x and the metadata themselves.
  PackedTokens pack(const DispatchLayout& layout, ConstView x, ConstView weights, Arena& arena) const;

  // Waits for the counts, and computes the splits of the hops.
  // The views `tokens` and `row_id_map` of the layout, and memory allocated from `saved`, must live
  // as long as the handle. Memory from `scratch` must stay until the first PendingDispatch::wait().
  DispatchHandle finalize(const CountExchange& exchange, Arena& saved, Arena& scratch);

 private:
  Device& device_;
  Comm* group_;
  // nullptr if dispatch is not hierarchical
  Comm *inter_node_, *intra_node_;
  ExpertPlacement placement_;
};

}  // namespace sy
