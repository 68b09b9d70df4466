#include "dist/exchange.h"

#include <utility>

#include "dist/activity.h"

namespace sy {
namespace {

void add(HopPlan& plan, Index send, Index receive) {
  plan.send.push_back(send);
  plan.receive.push_back(receive);
  plan.sent += send;
  plan.received += receive;
}

}  // namespace

DispatchPlan plan_dispatch(std::span<const std::int32_t> counts, const ExpertRanks& of, int rank) {
  const ExpertSplit& split = of.split;
  const Index nodes = of.topology.nodes, mates = of.topology.ranks, ranks = split.ranks(),
              each = std::ssize(counts) / ranks, to_places = of.told(), to_ranks = to_places - ranks,
              experts = each - to_places;
  SY_ASSERT(std::ssize(counts) == ranks * each && experts >= 0 && experts % split.owners == 0,
            "{} counts of {} ranks, {} owners", counts.size(), ranks, split.owners);
  const auto count = [&](Index source, Index i) { return static_cast<Index>(counts[source * each + i]); };
  DispatchPlan plan;
  if (!of.by_node()) {
    HopPlan& hop = plan.hops.emplace_back();
    for (Index r = 0; r < ranks; ++r) add(hop, count(rank, r), count(r, rank));
  } else {
    // Rank `place` of a node exchanges with rank `place` of the other nodes, then within its node.
    const Index node = of.topology.node_of(rank), place = of.topology.within_node(rank);
    plan.hops.resize(2);
    HopPlan &across = plan.hops[0], &within = plan.hops[1];
    for (Index n = 0; n < nodes; ++n) add(across, count(rank, n), count(n * mates + place, node));
    for (Index mate = 0; mate < mates; ++mate) {
      Index send = 0, receive = 0;
      for (Index n = 0; n < nodes; ++n) {
        send += count(n * mates + place, to_ranks + node * mates + mate);
        receive += count(n * mates + mate, to_ranks + rank);
      }
      add(within, send, receive);
    }
  }
  const Index local = experts / split.owners, first = rank / split.parts * local;
  Index rows = 0;
  for (Index place = 0; place <= local; ++place) {
    plan.offsets.push_back(static_cast<std::int32_t>(rows));
    for (Index r = 0; r < ranks && place < local; ++r) rows += count(r, to_places + first + place);
  }
  SY_ASSERT(rows < INT32_MAX, "{} rows on one rank", rows);
  return plan;
}

Sends::Sends(const ExpertRanks& ranks, Index T, Index k, Index E, Arena& kept, Arena& scratch) {
  const ExpertSplit first = ranks.first_split();
  const Index copies = first.most_owners(k) * first.parts;  // maximum per token
  if (first.ranks() > 1) {
    tokens = kept.i32({T * copies});
    slots = kept.i32({T, copies});
  }
  places = scratch.i32({T, k});
  counts = scratch.i32({ranks.told() + E});
}

void Sends::plan(Backend& backend, const ExpertRanks& ranks, ConstView experts, ConstView keep, View kept,
                 Arena& scratch) const {
  const ExpertSplit first = ranks.first_split();
  const Index E = kept.elements();
  backend.plan_sends(first, experts, keep, places, tokens, slots, counts.rows(0, first.ranks() + E), kept);
  if (!ranks.by_node()) return;
  // The sources count the copies for each rank too,
  // so that the second hop needs no counts of its own.
  // This call overwrites the assignments that the first call wrote after the node counts, and
  // writes equal ones after the rank counts.
  const Arena::Scope scope(scratch);
  const ExpertSplit to_ranks{ranks.split.owners, ranks.split.parts};
  backend.plan_sends(to_ranks, places, {}, scratch.i32(places.shape()), {}, {},
                     counts.rows(first.ranks(), to_ranks.ranks() + E), scratch.i32({E}));
}

Exchange::Exchange(Backend& backend, const Mesh& mesh, const ExpertRanks& ranks, const Sends& sends, Arena& scratch)
    : backend_(&backend),
      group_(mesh.experts.get()),
      ranks_(ranks),
      experts_(sends.counts.elements() - ranks.told()),
      places_(sends.places) {
  SY_ASSERT(ranks.split.ranks() == group_->size(), "{} ranks of experts in a group of {}", ranks.split.ranks(),
            group_->size());
  counts_ = scratch.i32({group_->size(), sends.counts.elements()});
  group_->all_gather(sends.counts, counts_);
  backend.begin_read(counts_);
  if (local()) return;
  hops_.push_back({ranks.by_node() ? mesh.across.get() : group_, sends.tokens, sends.slots, {}});
  if (ranks.by_node()) hops_.push_back({mesh.within.get(), {}, {}, {}});
  places_ = copies(places_, scratch);
}

void Exchange::plan(Arena& kept, Arena& scratch) {
  std::vector<std::int32_t> counts(counts_.elements());
  backend_->end_read(counts.data());
  DispatchPlan plan = plan_dispatch(counts, ranks_, group_->rank());
  offsets_ = std::move(plan.offsets);
  for (std::size_t i = 0; i < hops_.size(); ++i) hops_[i].plan = std::move(plan.hops[i]);
  if (!ranks_.by_node()) return;
  const ExpertSplit split = node_split();
  const Index T = hops_[0].plan.received, k = places_.dim(1), copies = split.most_owners(k) * split.parts;
  hops_[1].tokens = kept.i32({T * copies});
  hops_[1].slots = kept.i32({T, copies});
  on_node_ = {scratch.i32({T, k}), scratch.i32({split.ranks() + experts_ / ranks_.topology.nodes}),
              scratch.i32({experts_ / ranks_.topology.nodes})};
}

ConstView Exchange::copies(ConstView x, Arena& arena) const {
  if (local()) return x;
  const View tokens = hops_.front().tokens, out = arena.take({tokens.elements(), x.dim(1)}, x.dtype());
  backend_->gather_rows(x, tokens, out);
  return out;
}

void Exchange::start(Comm& group, std::span<const InOut> buffers, std::span<const Index> send,
                     std::span<const Index> receive, const char* part) {
  const DoingPart doing(part);
  group.mark();
  group.start_all_to_all_v(buffers, send, receive);
}

std::vector<ConstView> Exchange::dispatch(std::initializer_list<Leaving> leaving, Arena& scratch) {
  std::vector<ConstView> arrived;
  std::vector<InOut> buffers;
  const auto send = [&](ConstView copies, Arena& arena) {
    if (local()) return copies;
    const auto room = [&](Arena& from, Index rows) { return from.take({rows, copies.dim(1)}, copies.dtype()); };
    View there = room(hops_.size() > 1 ? scratch : arena, hops_[0].plan.received);
    buffers.push_back({copies.rows(0, hops_[0].plan.sent), there});
    if (hops_.size() > 1) {
      const HopPlan& on = hops_[1].plan;
      sent_on_.push_back({there, room(scratch, on.sent), room(arena, on.received)});
      there = sent_on_.back().out;
    }
    return ConstView(there);
  };
  for (const auto& [copies, arena] : leaving) arrived.push_back(send(copies, arena));
  if (!std::exchange(has_places_, true)) places_ = send(places_, scratch);
  if (!local()) start(*hops_[0].group, buffers, hops_[0].plan.send, hops_[0].plan.receive, "dispatch");
  return arrived;
}

// Forwards the tokens received from other nodes to the ranks of their experts within the node.
void Exchange::send_on() {
  const Hop& hop = hops_.back();
  if (const auto [places, counts, kept] = std::exchange(on_node_, {});
      counts)  // dispatch() sends the physical experts as its last buffer
    backend_->plan_sends(node_split(), sent_on_.back().there, {}, places, hop.tokens, hop.slots, counts, kept);
  std::vector<InOut> buffers;
  for (const auto& [there, copies, out] : sent_on_) {
    backend_->gather_rows(there, hop.tokens.rows(0, hop.plan.sent), copies);
    buffers.push_back({copies, out});
  }
  start(*hop.group, buffers, hop.plan.send, hop.plan.receive, "dispatch");
  hop.group->wait();
  sent_on_.clear();
}

void Exchange::combine(std::initializer_list<Sum> sums, Arena& scratch) {
  for (const auto& [x, slots, from, y] : sums) {
    const Shape as_summed{slots.dim(0), x.dim(1)};
    if (local()) {
      backend_->combine_rows(x, slots, from ? from.reshape(as_summed) : from, y.reshape(as_summed));
      continue;
    }
    const View sum = scratch.take({hops_.back().plan.received, y.dim(1)}, x.dtype());
    backend_->combine_rows(x, slots, {}, sum.reshape(as_summed));
    returning_.push_back({sum, from, y});
  }
  // Runs the hops from the last to the first. finish() sums the rows that the first hop returns.
  for (auto hop = hops_.rbegin(); hop != hops_.rend(); ++hop) {
    if (hop != hops_.rbegin())
      for (auto& [rows, from, y] : returning_) {
        const View sum = scratch.take({hop->plan.received, y.dim(1)}, rows.dtype());
        backend_->combine_rows(rows, hops_.back().slots, {}, sum);
        rows = sum;
      }
    std::vector<InOut> buffers;
    for (auto& [rows, from, y] : returning_) {
      const View back = scratch.take({hop->plan.sent, y.dim(1)}, rows.dtype());
      buffers.push_back({std::exchange(rows, back), back});
    }
    start(*hop->group, buffers, hop->plan.receive, hop->plan.send, "combine");
    if (hop + 1 != hops_.rend()) hop->group->wait();
  }
}

void Exchange::finish() {
  if (local()) return;
  hops_.front().group->wait();
  if (!sent_on_.empty()) send_on();
  for (const auto& [rows, from, y] : returning_) backend_->combine_rows(rows, hops_.front().slots, from, y);
  returning_.clear();
}

}  // namespace sy
