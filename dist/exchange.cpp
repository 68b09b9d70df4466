#include "dist/exchange.h"

#include <algorithm>

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
  plan.order.resize(plan.received);
  plan.inverse.resize(plan.received);
  std::vector<std::int32_t> next(plan.offsets.begin(), plan.offsets.end());
  std::int32_t arrived = 0;
  for (int r = 0; r < ranks; ++r)
    for (Index e = 0; e < local; ++e)
      for (Index i = count(r, rank * local + e); i > 0; --i, ++arrived) {
        const std::int32_t row = next[e]++;
        plan.order[row] = arrived;
        plan.inverse[arrived] = row;
        plan.in_order &= row == arrived;
      }
  return plan;
}

Exchange::Exchange(Backend& backend, Comm& ep, std::span<const std::int32_t> counts, Arena& arena)
    : backend_(&backend), ep_(&ep) {
  const Index experts = static_cast<Index>(counts.size());
  std::vector<std::int32_t> all(ep.size() * experts);
  ep.all_gather(view_of(counts.data(), {experts}), view_of(all.data(), {ep.size() * experts}));
  plan_ = plan_dispatch(all, ep.size(), ep.rank(), experts);
  const auto upload = [&](const std::vector<std::int32_t>& v) {
    const View x = arena.i32({static_cast<Index>(v.size())});
    backend.to_device(v.data(), x);
    return x;
  };
  offsets_ = upload(plan_.offsets);
  if (plan_.in_order) return;
  order_ = upload(plan_.order);
  inverse_ = upload(plan_.inverse);
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

View Exchange::dispatch(View rows, Arena& arena, Arena& scratch) const {
  if (local()) return rows;
  const View out = arena.take(with_rows(rows.shape(), plan_.received), rows.dtype());
  const Arena::Scope scope(scratch);
  const View arrived = plan_.in_order ? out : scratch.take(out.shape(), out.dtype());
  backend_->synchronize();
  ep_->all_to_all_v(rows, plan_.send, arrived, plan_.receive);
  if (!plan_.in_order) backend_->gather_rows(matrix(arrived), order_, matrix(out));
  return out;
}

View Exchange::combine(View rows, Arena& arena, Arena& scratch) const {
  if (local()) return rows;
  const View out = arena.take(with_rows(rows.shape(), plan_.sent), rows.dtype());
  const Arena::Scope scope(scratch);
  View leaving = rows;
  if (!plan_.in_order) {
    leaving = scratch.take(rows.shape(), rows.dtype());
    backend_->gather_rows(matrix(rows), inverse_, matrix(leaving));
  }
  backend_->synchronize();
  ep_->all_to_all_v(leaving, plan_.receive, out, plan_.send);
  return out;
}

}  // namespace sy
