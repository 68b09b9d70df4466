#include "dist/exchange.h"

#include "dist/activity.h"

namespace sy {

DispatchPlan plan_dispatch(std::span<const std::int32_t> counts, const ExpertSplit& split, int rank) {
  const Index ranks = split.ranks(), each = std::ssize(counts) / ranks, experts = each - ranks;
  SY_ASSERT(std::ssize(counts) == ranks * each && experts >= 0 && experts % split.owners == 0,
            "{} counts of {} ranks, {} owners", counts.size(), ranks, split.owners);
  const Index local = experts / split.owners, first = rank / split.parts * local;
  const auto count = [&](Index source, Index i) { return static_cast<Index>(counts[source * each + i]); };
  DispatchPlan plan;
  Index rows = 0;
  for (Index r = 0; r < ranks; ++r) {
    plan.send.push_back(count(rank, r));
    plan.receive.push_back(count(r, rank));
    plan.sent += plan.send.back();
    plan.received += plan.receive.back();
  }
  for (Index place = 0; place <= local; ++place) {
    plan.offsets.push_back(static_cast<std::int32_t>(rows));
    for (Index r = 0; r < ranks && place < local; ++r) rows += count(r, ranks + first + place);
  }
  SY_ASSERT(rows < INT32_MAX, "{} rows on one rank", rows);
  return plan;
}

Exchange::Exchange(Backend& backend, Comm& group, const ExpertSplit& split, const Sends& sends, Arena& arena)
    : backend_(&backend), group_(&group), split_(split), sends_(sends) {
  SY_ASSERT(split.ranks() == group.size(), "{} ranks of experts in a group of {}", split.ranks(), group.size());
  counts_ = arena.i32({group.size(), sends.counts.elements()});
  group.all_gather(sends.counts, counts_);
  backend.begin_read(counts_);
}

void Exchange::plan() {
  std::vector<std::int32_t> counts(counts_.elements());
  backend_->end_read(counts.data());
  plan_ = plan_dispatch(counts, split_, group_->rank());
}

ConstView Exchange::copies(ConstView x, Arena& arena) const {
  if (local()) return x;
  const View out = arena.take({sends_.tokens.elements(), x.dim(1)}, x.dtype());
  backend_->gather_rows(x, sends_.tokens, out);
  return out;
}

void Exchange::start(std::span<const InOut> buffers, std::span<const Index> send, std::span<const Index> receive,
                     const char* part) {
  const DoingPart doing(part);
  group_->mark();
  group_->start_all_to_all_v(buffers, send, receive);
}

std::vector<ConstView> Exchange::dispatch(std::initializer_list<Leaving> leaving) {
  std::vector<ConstView> arrived;
  std::vector<InOut> buffers;
  for (const auto& [copies, arena] : leaving) {
    if (local()) {
      arrived.push_back(copies);
      continue;
    }
    const View out = arena.take({plan_.received, copies.dim(1)}, copies.dtype());
    buffers.push_back({copies.rows(0, plan_.sent), out});
    arrived.push_back(out);
  }
  if (!local()) start(buffers, plan_.send, plan_.receive, "dispatch");
  return arrived;
}

void Exchange::combine(std::initializer_list<Sum> sums, Arena& scratch) {
  std::vector<InOut> buffers;
  for (const auto& [x, slots, from, y] : sums) {
    const Shape as_summed{slots.dim(0), x.dim(1)};
    if (local()) {
      backend_->combine_rows(x, slots, from ? from.reshape(as_summed) : from, y.reshape(as_summed));
      continue;
    }
    const View sum = scratch.take({plan_.received, y.dim(1)}, x.dtype()),
               back = scratch.take({plan_.sent, y.dim(1)}, x.dtype());
    backend_->combine_rows(x, slots, {}, sum.reshape(as_summed));
    buffers.push_back({sum, back});
    returning_.push_back({back, from, y});
  }
  if (!local()) start(buffers, plan_.receive, plan_.send, "combine");
}

void Exchange::finish() {
  group_->wait();
  for (const auto& [copies, from, y] : returning_) backend_->combine_rows(copies, sends_.slots, from, y);
  returning_.clear();
}

}  // namespace sy
