#include "dist/token_dispatcher.h"

#include <utility>

#include "dist/phase.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/permute.h"

namespace sy {
namespace {

void add(HopSplits& splits, Index num_sent, Index num_received) {
  splits.input_splits.push_back(num_sent);
  splits.output_splits.push_back(num_received);
  splits.num_sent += num_sent;
  splits.num_received += num_received;
}

}  // namespace

Index DispatchCounts::elements(const ExpertPlacement& placement, Index E) {
  const Index P = placement.partition.ranks(), N = placement.topology.nodes,
              ranks = P * (1 + E / placement.partition.ep), nodes = N + E;
  return P == 1 ? ranks : placement.is_hierarchical() ? 3 * ranks + 2 * nodes : 2 * ranks;
}

DispatchCounts::DispatchCounts(const ExpertPlacement& placement, Index E, View memory) : buffer(memory) {
  const Index P = placement.partition.ranks(), ep = placement.partition.ep, N = placement.topology.nodes;
  SY_ASSERT(memory.elements() == elements(placement, E) && E % ep == 0, "{} counts of {} experts on {} ranks",
            memory.elements(), E, P);
  Index at = 0;
  const auto next = [&](Index rows, Index experts) {
    const Shape shape{rows, 1 + experts};
    return memory.rows(std::exchange(at, at + shape.elements()), shape.elements()).reshape(shape);
  };
  to_ranks = next(P, E / ep);
  from_ranks = P == 1 ? to_ranks : next(P, E / ep);
  if (!placement.is_hierarchical()) return;
  of_peers = next(P, E / ep);
  to_nodes = next(N, E / N);
  from_peers = next(N, E / N);
}

DispatchSplits dispatch_splits(const DispatchCounts& counts, const Topology& topology) {
  const Index nodes = topology.nodes, ranks_per_node = topology.ranks_per_node, ranks = counts.from_ranks.dim(0),
              local = counts.from_ranks.dim(1) - 1;
  // column 0: copies; column 1 + e: assignments of the destination's expert e
  const auto count = [](ConstView table, Index row, Index column) {
    return static_cast<Index>(table.i32()[row * table.dim(1) + column]);
  };
  DispatchSplits splits;
  if (nodes == 1) {
    HopSplits& hop = splits.hops.emplace_back();
    for (Index r = 0; r < ranks; ++r) add(hop, count(counts.to_ranks, r, 0), count(counts.from_ranks, r, 0));
  } else {
    // A rank exchanges with the ranks of the same index in the other nodes, then within its node.
    splits.hops.resize(2);
    HopSplits &internode = splits.hops[0], &intranode = splits.hops[1];
    for (Index n = 0; n < nodes; ++n) add(internode, count(counts.to_nodes, n, 0), count(counts.from_peers, n, 0));
    for (Index peer = 0; peer < ranks_per_node; ++peer) {
      Index num_sent = 0, num_received = 0;
      for (Index n = 0; n < nodes; ++n) {
        num_sent += count(counts.of_peers, n * ranks_per_node + peer, 0);
        num_received += count(counts.from_ranks, n * ranks_per_node + peer, 0);
      }
      add(intranode, num_sent, num_received);
    }
  }
  Index rows = 0;
  for (Index expert = 0; expert <= local; ++expert) {
    splits.offsets.push_back(static_cast<std::int32_t>(rows));
    for (Index r = 0; r < ranks && expert < local; ++r) rows += count(counts.from_ranks, r, 1 + expert);
  }
  SY_ASSERT(rows < INT32_MAX, "{} rows on one rank", rows);
  return splits;
}

DispatchLayout::DispatchLayout(const ExpertPlacement& placement, Index T, Index k, View tokens_per_expert_memory,
                               Arena& saved, Arena& scratch)
    : tokens_per_expert(tokens_per_expert_memory) {
  const ExpertPartition first = placement.internode_partition();
  const Index copies = first.max_ep_ranks(k) * first.etp;  // maximum per token
  if (first.ranks() > 1) {
    tokens = saved.i32({T * copies});
    row_id_map = saved.i32({T, copies});
  }
  physical_experts = scratch.i32({T, k});
  counts = scratch.i32({DispatchCounts::elements(placement, tokens_per_expert.elements())});
}

void DispatchLayout::build(Device& device, const ExpertPlacement& placement, ConstView experts, ConstView dispatch_mask,
                           Arena& scratch) const {
  const ExpertPartition first = placement.internode_partition();
  const Index E = tokens_per_expert.elements();
  const DispatchCounts own(placement, E, counts);
  run(device, ops::DispatchLayout{.experts = experts,
                                  .dispatch_mask = dispatch_mask,
                                  .partition = first,
                                  .expected = placement.expected_routing({}),
                                  .physical_experts = physical_experts,
                                  .tokens = tokens,
                                  .row_id_map = row_id_map,
                                  .counts = placement.is_hierarchical() ? own.to_nodes : own.to_ranks,
                                  .tokens_per_expert = tokens_per_expert});
  if (!placement.is_hierarchical()) return;
  // The sources count the copies for each rank too,
  // so that the second hop needs no counts of its own.
  const Arena::Scope scope(scratch);
  const ExpertPartition to_ranks{placement.partition.ep, placement.partition.etp};
  run(device, ops::DispatchLayout{.experts = physical_experts,
                                  .partition = to_ranks,
                                  .expected = placement.expected_routing(tokens_per_expert),
                                  .physical_experts = scratch.i32(physical_experts.shape()),
                                  .counts = own.to_ranks,
                                  .tokens_per_expert = scratch.i32({E})});
}

namespace {

Work start(Comm& group, std::span<const SendReceive> buffers, std::span<const Index> input_splits,
           std::span<const Index> output_splits, const char* subphase) {
  const ScopedSubphase scope(group.rank_context(), subphase);
  return group.start_all_to_all_v(buffers, input_splits, output_splits);
}

}  // namespace

TokenDispatcher::TokenDispatcher(Device& device, const Mesh& mesh, const ExpertPlacement& placement)
    : device_(device),
      group_(mesh.expert_group.get()),
      inter_node_(mesh.inter_node.get()),
      intra_node_(mesh.intra_node.get()),
      placement_(placement) {
  SY_ASSERT(placement.partition.ranks() == group_->size(), "{} ranks of experts in a group of {}",
            placement.partition.ranks(), group_->size());
}

CountExchange TokenDispatcher::exchange_counts(const DispatchLayout& layout) {
  const DispatchCounts counts(placement_, layout.tokens_per_expert.elements(), layout.counts);
  const ScopedSubphase scope(group_->rank_context(), "count exchange");
  if (group_->size() > 1) group_->all_to_all(counts.to_ranks, counts.from_ranks);
  if (inter_node_) {
    inter_node_->all_to_all(counts.to_nodes, counts.from_peers);
    inter_node_->all_to_all(counts.to_ranks, counts.of_peers);
  }
  device_.begin_read(counts.buffer);
  return {layout};
}

PackedTokens TokenDispatcher::pack(const DispatchLayout& layout, ConstView x, ConstView weights, Arena& arena) const {
  const TokenRow row{weights.dim(1), x.dim(1), x.dtype()};
  if (local()) return {x, row.k, 0, layout.physical_experts, weights};
  const View packed = arena.take({layout.tokens.elements(), row.columns()}, x.dtype());
  run(device_, ops::PackTokens{.physical_experts = layout.physical_experts,
                               .weights = weights,
                               .x = x,
                               .index = layout.tokens,
                               .y = packed});
  return {packed, row.k, row.first_value()};
}

DispatchHandle TokenDispatcher::finalize(const CountExchange& exchange, Arena& saved, Arena& scratch) {
  const DispatchLayout& layout = exchange.layout;
  const Index E = layout.tokens_per_expert.elements();
  std::vector<std::int32_t> counts(layout.counts.elements());
  device_.end_read(counts.data());
  DispatchSplits splits =
      dispatch_splits({placement_, E, view_of(counts.data(), layout.counts.shape())}, placement_.topology);
  DispatchHandle handle(device_, *group_, placement_, E);
  handle.offsets_ = std::move(splits.offsets);
  handle.tokens_per_expert_ = layout.tokens_per_expert;
  if (local()) return handle;
  const bool hierarchical = placement_.is_hierarchical();
  handle.hops_.push_back(
      {hierarchical ? inter_node_ : group_, layout.tokens, layout.row_id_map, std::move(splits.hops[0])});
  if (!hierarchical) return handle;
  const ExpertPartition partition = handle.intranode_partition();
  const Index T = handle.hops_[0].splits.num_received, k = layout.physical_experts.dim(1),
              copies = partition.max_ep_ranks(k) * partition.etp, node_experts = E / placement_.topology.nodes;
  const View tokens = saved.i32({T * copies}), row_id_map = saved.i32({T, copies});
  handle.hops_.push_back({intra_node_, tokens, row_id_map, std::move(splits.hops[1])});
  handle.intranode_outputs_ = {scratch.i32({T, k}), scratch.i32({partition.ranks(), 1 + node_experts / partition.ep}),
                               scratch.i32({node_experts})};
  return handle;
}

PackedTokens DispatchHandle::pack(ConstView x, Arena& arena) const {
  if (local()) return {x};
  const View tokens = hops_.front().tokens, packed = arena.take({tokens.elements(), x.dim(1)}, x.dtype());
  run(*device_, ops::Permute{.x = x, .index = tokens, .y = packed});
  return {packed};
}

PendingDispatch DispatchHandle::dispatch(const PackedTokens& tokens, Arena& arena, Arena& scratch) {
  PendingDispatch pending(*this);
  if (local()) {
    pending.received_ = tokens;
    return pending;
  }
  const HopSplits& first = hops_.front().splits;
  const Index received = hops_.back().splits.num_received, k = tokens.k;
  const auto buffer = [&](Arena& a, Index n) { return a.take({n, tokens.rows.dim(1)}, tokens.rows.dtype()); };
  pending.output_.rows = buffer(arena, received);
  if (k > 0) {
    pending.output_.physical_experts = scratch.i32({received, k});
    pending.output_.weights = scratch.f32({received, k});
  }
  const auto& [output, physical_experts, weights] = pending.output_;
  pending.received_ = {output, k, tokens.first_column, physical_experts, weights};
  View arrives = output;
  if (hops_.size() > 1) {
    arrives = buffer(scratch, first.num_received);
    pending.forwarding_ = {arrives, k > 0 ? scratch.i32({first.num_received, k}) : View(),
                           buffer(scratch, hops_.back().splits.num_sent)};
  }
  const SendReceive rows{tokens.rows.rows(0, first.num_sent), arrives};
  pending.first_hop_ = start(*hops_.front().group, {&rows, 1}, first.input_splits, first.output_splits, "dispatch");
  return pending;
}

void PendingDispatch::wait() {
  if (std::exchange(waited_, true) || handle_->local()) return;
  first_hop_.wait();
  if (handle_->hops_.size() > 1) forward_intranode();
  const auto& [rows, physical_experts, weights] = output_;
  if (physical_experts)
    run(*handle_->device_, ops::UnpackTokens{.x = rows, .physical_experts = physical_experts, .weights = weights});
}

// Forwards the tokens received from other nodes to the ranks of their experts within the node.
void PendingDispatch::forward_intranode() {
  Device& device = *handle_->device_;
  const DispatchHandle::Hop& hop = handle_->hops_.back();
  const auto& [received, chosen, packed] = forwarding_;
  if (chosen) {
    const auto& [physical_experts, counts, tokens_per_expert] = handle_->intranode_outputs_;
    run(device, ops::UnpackTokens{.x = received, .physical_experts = chosen});
    run(device, ops::DispatchLayout{.experts = chosen,
                                    .partition = handle_->intranode_partition(),
                                    .expected = handle_->placement_.expected_routing(handle_->tokens_per_expert_),
                                    .physical_experts = physical_experts,
                                    .tokens = hop.tokens,
                                    .row_id_map = hop.row_id_map,
                                    .counts = counts,
                                    .tokens_per_expert = tokens_per_expert});
  }
  run(device, ops::Permute{.x = received, .index = hop.tokens.rows(0, hop.splits.num_sent), .y = packed});
  const SendReceive rows{packed, output_.rows};
  start(*hop.group, {&rows, 1}, hop.splits.input_splits, hop.splits.output_splits, "dispatch").wait();
}

PendingCombine DispatchHandle::combine(std::initializer_list<CombineSum> sums, Arena& scratch) {
  PendingCombine pending(*this);
  for (const auto& [x, row_id_map, addend, y] : sums) {
    const Shape as_summed{row_id_map.dim(0), x.dim(1)};
    if (local()) {
      run(*device_, ops::Unpermute{.x = x,
                                   .row_id_map = row_id_map,
                                   .addend = addend ? addend.reshape(as_summed) : addend,
                                   .y = y.reshape(as_summed)});
      continue;
    }
    const View sum = scratch.take({hops_.back().splits.num_received, y.dim(1)}, x.dtype());
    run(*device_, ops::Unpermute{.x = x, .row_id_map = row_id_map, .y = sum.reshape(as_summed)});
    pending.returned_.push_back({sum, addend, y});
  }
  // Runs the hops from the last to the first. PendingCombine::wait() sums the rows that the first
  // hop returns.
  for (auto hop = hops_.rbegin(); hop != hops_.rend(); ++hop) {
    if (hop != hops_.rbegin()) {
      pending.last_hop_.wait();
      for (auto& [rows, addend, y] : pending.returned_) {
        const View sum = scratch.take({hop->splits.num_received, y.dim(1)}, rows.dtype());
        run(*device_, ops::Unpermute{.x = rows, .row_id_map = hops_.back().row_id_map, .y = sum});
        rows = sum;
      }
    }
    std::vector<SendReceive> buffers;
    for (auto& [rows, addend, y] : pending.returned_) {
      const View returned = scratch.take({hop->splits.num_sent, y.dim(1)}, rows.dtype());
      buffers.push_back({std::exchange(rows, returned), returned});
    }
    pending.last_hop_ = start(*hop->group, buffers, hop->splits.output_splits, hop->splits.input_splits, "combine");
  }
  return pending;
}

void PendingCombine::wait() {
  last_hop_.wait();
  for (const auto& [rows, addend, y] : returned_)
    run(*handle_->device_,
        ops::Unpermute{.x = rows, .row_id_map = handle_->hops_.front().row_id_map, .addend = addend, .y = y});
  returned_.clear();
}

}  // namespace sy
