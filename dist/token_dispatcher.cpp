#include "dist/token_dispatcher.h"

#include <utility>

#include "dist/phase.h"
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

DispatchSplits dispatch_splits(std::span<const std::int32_t> counts, const ExpertPlacement& placement, int rank) {
  const ExpertPartition& partition = placement.partition;
  const Index nodes = placement.topology.nodes, ranks_per_node = placement.topology.ranks_per_node,
              ranks = partition.ranks(), each = std::ssize(counts) / ranks,
              num_destinations = placement.num_destinations(), rank_counts = num_destinations - ranks,
              experts = each - num_destinations;
  SY_ASSERT(std::ssize(counts) == ranks * each && experts >= 0 && experts % partition.ep == 0,
            "{} counts of {} ranks, ep = {}", counts.size(), ranks, partition.ep);
  const auto count = [&](Index source, Index i) { return static_cast<Index>(counts[source * each + i]); };
  DispatchSplits splits;
  if (!placement.is_hierarchical()) {
    HopSplits& hop = splits.hops.emplace_back();
    for (Index r = 0; r < ranks; ++r) add(hop, count(rank, r), count(r, rank));
  } else {
    // A rank exchanges with the ranks of the same index in the other nodes, then within its node.
    const Index node = placement.topology.node_of(rank), index = placement.topology.index_in_node(rank);
    splits.hops.resize(2);
    HopSplits &internode = splits.hops[0], &intranode = splits.hops[1];
    for (Index n = 0; n < nodes; ++n) add(internode, count(rank, n), count(n * ranks_per_node + index, node));
    for (Index peer = 0; peer < ranks_per_node; ++peer) {
      Index num_sent = 0, num_received = 0;
      for (Index n = 0; n < nodes; ++n) {
        num_sent += count(n * ranks_per_node + index, rank_counts + node * ranks_per_node + peer);
        num_received += count(n * ranks_per_node + peer, rank_counts + rank);
      }
      add(intranode, num_sent, num_received);
    }
  }
  const Index local = experts / partition.ep, first = rank / partition.etp * local;
  Index rows = 0;
  for (Index expert = 0; expert <= local; ++expert) {
    splits.offsets.push_back(static_cast<std::int32_t>(rows));
    for (Index r = 0; r < ranks && expert < local; ++r) rows += count(r, num_destinations + first + expert);
  }
  SY_ASSERT(rows < INT32_MAX, "{} rows on one rank", rows);
  return splits;
}

DispatchLayout::DispatchLayout(const ExpertPlacement& placement, Index T, Index k, Index E, Arena& saved,
                               Arena& scratch) {
  const ExpertPartition first = placement.internode_partition();
  const Index copies = first.max_ep_ranks(k) * first.etp;  // maximum per token
  if (first.ranks() > 1) {
    tokens = saved.i32({T * copies});
    row_id_map = saved.i32({T, copies});
  }
  physical_experts = scratch.i32({T, k});
  counts = scratch.i32({placement.num_destinations() + E});
}

void DispatchLayout::build(Device& backend, const ExpertPlacement& placement, ConstView experts,
                           ConstView dispatch_mask, View tokens_per_expert, Arena& scratch) const {
  const ExpertPartition first = placement.internode_partition();
  const Index E = tokens_per_expert.elements();
  run(backend, ops::DispatchLayout{.experts = experts,
                                   .dispatch_mask = dispatch_mask,
                                   .partition = first,
                                   .physical_experts = physical_experts,
                                   .tokens = tokens,
                                   .row_id_map = row_id_map,
                                   .counts = counts.rows(0, first.ranks() + E),
                                   .tokens_per_expert = tokens_per_expert});
  if (!placement.is_hierarchical()) return;
  // The sources count the copies for each rank too,
  // so that the second hop needs no counts of its own.
  // This call overwrites the assignments that the first call wrote after the node counts, and
  // writes equal ones after the rank counts.
  const Arena::Scope scope(scratch);
  const ExpertPartition to_ranks{placement.partition.ep, placement.partition.etp};
  run(backend, ops::DispatchLayout{.experts = physical_experts,
                                   .partition = to_ranks,
                                   .physical_experts = scratch.i32(physical_experts.shape()),
                                   .counts = counts.rows(first.ranks(), to_ranks.ranks() + E),
                                   .tokens_per_expert = scratch.i32({E})});
}

TokenDispatcher::TokenDispatcher(Device& backend, const Mesh& mesh, const ExpertPlacement& placement,
                                 const DispatchLayout& layout, Arena& scratch)
    : backend_(&backend),
      group_(mesh.expert_group.get()),
      placement_(placement),
      experts_(layout.counts.elements() - placement.num_destinations()),
      physical_experts_(layout.physical_experts) {
  SY_ASSERT(placement.partition.ranks() == group_->size(), "{} ranks of experts in a group of {}",
            placement.partition.ranks(), group_->size());
  counts_ = scratch.i32({group_->size(), layout.counts.elements()});
  group_->all_gather(layout.counts, counts_);
  backend.begin_read(counts_);
  if (local()) return;
  hops_.push_back({placement.is_hierarchical() ? mesh.inter_node.get() : group_, layout.tokens, layout.row_id_map, {}});
  if (placement.is_hierarchical()) hops_.push_back({mesh.intra_node.get(), {}, {}, {}});
  physical_experts_ = pack(physical_experts_, scratch);
}

void TokenDispatcher::compute_splits(Arena& saved, Arena& scratch) {
  std::vector<std::int32_t> counts(counts_.elements());
  backend_->end_read(counts.data());
  DispatchSplits splits = dispatch_splits(counts, placement_, group_->rank());
  offsets_ = std::move(splits.offsets);
  for (std::size_t i = 0; i < hops_.size(); ++i) hops_[i].splits = std::move(splits.hops[i]);
  if (!placement_.is_hierarchical()) return;
  const ExpertPartition partition = intranode_partition();
  const Index T = hops_[0].splits.num_received, k = physical_experts_.dim(1),
              copies = partition.max_ep_ranks(k) * partition.etp;
  hops_[1].tokens = saved.i32({T * copies});
  hops_[1].row_id_map = saved.i32({T, copies});
  intranode_outputs_ = {scratch.i32({T, k}), scratch.i32({partition.ranks() + experts_ / placement_.topology.nodes}),
                        scratch.i32({experts_ / placement_.topology.nodes})};
}

ConstView TokenDispatcher::pack(ConstView x, Arena& arena) const {
  if (local()) return x;
  const View tokens = hops_.front().tokens, packed = arena.take({tokens.elements(), x.dim(1)}, x.dtype());
  run(*backend_, ops::Permute{.x = x, .index = tokens, .y = packed});
  return packed;
}

void TokenDispatcher::start(Comm& group, std::span<const SendReceive> buffers, std::span<const Index> input_splits,
                            std::span<const Index> output_splits, const char* subphase) {
  const ScopedSubphase scope(group.rank_context(), subphase);
  group.mark();
  group.start_all_to_all_v(buffers, input_splits, output_splits);
}

std::vector<ConstView> TokenDispatcher::dispatch(std::initializer_list<SendBuffer> send_buffers, Arena& scratch) {
  std::vector<ConstView> received_tokens;
  std::vector<SendReceive> buffers;
  const auto send = [&](ConstView rows, Arena& arena) {
    if (local()) return rows;
    const auto buffer = [&](Arena& a, Index n) { return a.take({n, rows.dim(1)}, rows.dtype()); };
    View received = buffer(hops_.size() > 1 ? scratch : arena, hops_[0].splits.num_received);
    buffers.push_back({rows.rows(0, hops_[0].splits.num_sent), received});
    if (hops_.size() > 1) {
      const HopSplits& intranode = hops_[1].splits;
      forwarding_.push_back({received, buffer(scratch, intranode.num_sent), buffer(arena, intranode.num_received)});
      received = forwarding_.back().output;
    }
    return ConstView(received);
  };
  for (const auto& [rows, arena] : send_buffers) received_tokens.push_back(send(rows, arena));
  if (!std::exchange(sent_physical_experts_, true)) physical_experts_ = send(physical_experts_, scratch);
  if (!local())
    start(*hops_[0].group, buffers, hops_[0].splits.input_splits, hops_[0].splits.output_splits, "dispatch");
  return received_tokens;
}

// Forwards the tokens received from other nodes to the ranks of their experts within the node.
void TokenDispatcher::forward_intranode() {
  const Hop& hop = hops_.back();
  if (const auto [physical_experts, counts, tokens_per_expert] = std::exchange(intranode_outputs_, {});
      counts)  // dispatch() sends the physical experts as its last buffer
    run(*backend_, ops::DispatchLayout{.experts = forwarding_.back().received,
                                       .partition = intranode_partition(),
                                       .physical_experts = physical_experts,
                                       .tokens = hop.tokens,
                                       .row_id_map = hop.row_id_map,
                                       .counts = counts,
                                       .tokens_per_expert = tokens_per_expert});
  std::vector<SendReceive> buffers;
  for (const auto& [received, packed, output] : forwarding_) {
    run(*backend_, ops::Permute{.x = received, .index = hop.tokens.rows(0, hop.splits.num_sent), .y = packed});
    buffers.push_back({packed, output});
  }
  start(*hop.group, buffers, hop.splits.input_splits, hop.splits.output_splits, "dispatch");
  hop.group->wait();
  forwarding_.clear();
}

void TokenDispatcher::combine(std::initializer_list<Sum> sums, Arena& scratch) {
  for (const auto& [x, row_id_map, addend, y] : sums) {
    const Shape as_summed{row_id_map.dim(0), x.dim(1)};
    if (local()) {
      run(*backend_, ops::Unpermute{.x = x,
                                    .row_id_map = row_id_map,
                                    .addend = addend ? addend.reshape(as_summed) : addend,
                                    .y = y.reshape(as_summed)});
      continue;
    }
    const View sum = scratch.take({hops_.back().splits.num_received, y.dim(1)}, x.dtype());
    run(*backend_, ops::Unpermute{.x = x, .row_id_map = row_id_map, .y = sum.reshape(as_summed)});
    pending_combines_.push_back({sum, addend, y});
  }
  // Runs the hops from the last to the first. finish() sums the rows that the first hop returns.
  for (auto hop = hops_.rbegin(); hop != hops_.rend(); ++hop) {
    if (hop != hops_.rbegin())
      for (auto& [rows, addend, y] : pending_combines_) {
        const View sum = scratch.take({hop->splits.num_received, y.dim(1)}, rows.dtype());
        run(*backend_, ops::Unpermute{.x = rows, .row_id_map = hops_.back().row_id_map, .y = sum});
        rows = sum;
      }
    std::vector<SendReceive> buffers;
    for (auto& [rows, addend, y] : pending_combines_) {
      const View returned = scratch.take({hop->splits.num_sent, y.dim(1)}, rows.dtype());
      buffers.push_back({std::exchange(rows, returned), returned});
    }
    start(*hop->group, buffers, hop->splits.output_splits, hop->splits.input_splits, "combine");
    if (hop + 1 != hops_.rend()) hop->group->wait();
  }
}

void TokenDispatcher::finish() {
  if (local()) return;
  hops_.front().group->wait();
  if (!forwarding_.empty()) forward_intranode();
  for (const auto& [rows, addend, y] : pending_combines_)
    run(*backend_, ops::Unpermute{.x = rows, .row_id_map = hops_.front().row_id_map, .addend = addend, .y = y});
  pending_combines_.clear();
}

}  // namespace sy
