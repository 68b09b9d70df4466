#include "dist/exchange.h"

#include <algorithm>

#include "dist/activity.h"

namespace sy {

DispatchPlan plan_dispatch(std::span<const std::int32_t> counts, int ranks, int rank, Index experts) {
  SY_ASSERT(static_cast<Index>(counts.size()) == ranks * experts && experts % ranks == 0,
            "{} counts of {} experts on {} ranks", counts.size(), experts, ranks);
  const Index local = experts / ranks;
  const auto count = [&](int source, Index expert) { return static_cast<Index>(counts[source * experts + expert]); };
  DispatchPlan plan;
  for (int r = 0; r < ranks; ++r) {
    Index to = 0, from = 0;
    for (Index e = 0; e < local; ++e) {
      to += count(rank, r * local + e);
      from += count(r, rank * local + e);
    }
    plan.send.push_back(to);
    plan.receive.push_back(from);
    plan.sent += to;
    plan.received += from;
  }
  SY_ASSERT(plan.received < INT32_MAX, "{} rows on one rank", plan.received);

  plan.offsets.assign(local + 1, 0);
  for (Index e = 0; e < local; ++e) {
    plan.offsets[e + 1] = plan.offsets[e];
    for (int r = 0; r < ranks; ++r) plan.offsets[e + 1] += static_cast<std::int32_t>(count(r, rank * local + e));
  }
  Index last = 0;  // expert of the rows that have arrived
  for (int r = 0; r < ranks; ++r)
    for (Index e = 0; e < local; ++e) {
      if (count(r, rank * local + e) == 0) continue;
      plan.in_order &= e >= last;
      last = e;
    }
  return plan;
}

Exchange::Exchange(Backend& backend, Comm& ep, ConstView counts, Arena& arena) : backend_(&backend), ep_(&ep) {
  counts_ = arena.i32({ep.size(), counts.elements()});
  ep.all_gather(counts, counts_);
  backend.begin_read(counts_);
}

void Exchange::plan(Arena& arena) {
  std::vector<std::int32_t> counts(counts_.elements());
  backend_->end_read(counts.data());
  plan_ = plan_dispatch(counts, ep_->size(), ep_->rank(), counts_.dim(1));
  const Index experts = counts_.dim(1) / ep_->size();
  offsets_ = arena.i32({experts + 1});
  order_ = arena.i32({plan_.received});
  inverse_ = arena.i32({plan_.received});
  backend_->order_arrivals(counts_, ep_->rank() * experts, offsets_, order_, inverse_);
}

namespace {

Shape with_rows(const Shape& shape, Index rows) {
  Shape s = shape;
  s[0] = rows;
  return s;
}

// Both are read as rows of floats: [n] is n rows of one.
View matrix(View x) {
  return x.shape().size() == 1 ? x.reshape({x.dim(0), 1}) : x;
}

}  // namespace

View Exchange::dispatch(View rows, Arena& arena, Arena& scratch) {
  if (local()) return rows;
  const View out = arena.take(with_rows(rows.shape(), plan_.received), rows.dtype());
  const View arrived = plan_.in_order ? out : scratch.take(out.shape(), out.dtype());
  const DoingPart doing("dispatch");
  ep_->mark();
  ep_->start_all_to_all_v(rows, plan_.send, arrived, plan_.receive);
  arrivals_.push_back({arrived, out});
  return out;
}

View Exchange::combine(View rows, Arena& arena, Arena& scratch) {
  if (local()) return rows;
  const View out = arena.take(with_rows(rows.shape(), plan_.sent), rows.dtype());
  View leaving = rows;
  if (!plan_.in_order) {
    leaving = scratch.take(rows.shape(), rows.dtype());
    backend_->gather_rows(matrix(rows), inverse_, matrix(leaving));
  }
  const DoingPart doing("combine");
  ep_->mark();
  ep_->start_all_to_all_v(leaving, plan_.receive, out, plan_.send);
  return out;
}

void Exchange::finish() {
  ep_->wait();
  for (const Arrival& a : arrivals_)
    if (a.arrived.bytes() != a.out.bytes()) backend_->gather_rows(matrix(a.arrived), order_, matrix(a.out));
  arrivals_.clear();
}

}  // namespace sy
