#include "src/train/grad_sync.h"

#include <cmath>

namespace sy {

Comm& comm_of(const Mesh& mesh, GradGroup group) {
  switch (group) {
    case GradGroup::replicated:
      return *mesh.world;
    case GradGroup::tensor:
      return *mesh.dp;
    case GradGroup::expert:
      return *mesh.edp;
  }
  SY_ASSERT(false, "group");
}

GradSync::GradSync(const Mesh& mesh, ParamStore& store, Arena& scratch)
    : mesh_(mesh), store_(store), scratch_(scratch) {
  const int tp = mesh.layout.tp;
  Index heads = 0;
  for (int g = 0; g < num_grad_groups; ++g)
    for (const Placement& p : store.layout().groups[g].placements)
      for (int d = 0; d < p.spec->shape.size(); ++d)
        if (p.spec->split[d] == Axis::tp && replicas_of(p.spec->shape[d], tp) > 1) {
          heads = p.spec->shape[d];
          replicated_.push_back({&p, static_cast<GradGroup>(g)});
        }
  if (!replicated_.empty()) replicas_ = mesh.tp->split([&](int rank) { return static_cast<int>(rank * heads / tp); });
}

void GradSync::sum_replicas() {
  for (const Replicated& r : replicated_)
    replicas_->all_reduce(store_.buffers(r.group).grads.view().rows(r.placement->offset, r.placement->box.elements()));
}

// Every parameter lies in exactly one rank's owned range, but for those that replicas hold too: the first of these counts.
double GradSync::owned_squares(GradGroup group, ConstView owned) {
  const Arena::Scope scope(scratch_);
  const View sum = scratch_.take({1}, DType::f64);
  const auto squares = [&](ConstView x) {
    double value = 0;
    store_.backend().sum_squares(x, sum);
    store_.backend().to_host(sum, &value);
    return value;
  };
  if (!replicas_ || replicas_->rank() == 0) return squares(owned);
  const GroupLayout& layout = store_.layout().groups[static_cast<int>(group)];
  double total = 0;
  for (const OwnedRun& run : owned_runs(layout)) {
    bool counted = true;
    for (const Replicated& r : replicated_) counted &= r.placement != run.placement;
    if (counted) total += squares(owned.rows(run.flat.begin - layout.owned().begin, run.flat.size()));
  }
  return total;
}

double GradSync::step(const Config::Train& train, double lr, Index step) {
  Backend& backend = store_.backend();
  std::array<View, num_grad_groups> owned;  // [n / shards] summed gradients of the owned range

  sum_replicas();
  double squares = 0;
  for (int g = 0; g < num_grad_groups; ++g) {
    const GroupLayout& layout = store_.layout().groups[g];
    if (layout.elements == 0) continue;
    const View grads = store_.buffers(static_cast<GradGroup>(g)).grads;
    owned[g] = grads.rows(layout.owned().begin, layout.owned().size());
    if (layout.shards > 1) {
      backend.synchronize();
      comm_of(mesh_, static_cast<GradGroup>(g)).reduce_scatter(grads, owned[g]);
    }
    squares += owned_squares(static_cast<GradGroup>(g), owned[g]);
  }
  const double norm = std::sqrt(mesh_.world->sum(squares));
  if (!std::isfinite(norm)) return norm;

  const auto bias = [&](double beta) { return static_cast<float>(1 - std::pow(beta, static_cast<double>(step))); };
  AdamW adamw{static_cast<float>(lr),
              static_cast<float>(train.beta1),
              static_cast<float>(train.beta2),
              static_cast<float>(train.eps),
              0,
              bias(train.beta1),
              bias(train.beta2),
              train.clip > 0 && norm > train.clip ? static_cast<float>(train.clip / norm) : 1.0f};
  for (int g = 0; g < num_grad_groups; ++g) {
    const GroupLayout& layout = store_.layout().groups[g];
    if (layout.elements == 0) continue;
    ParamStore::Buffers& b = store_.buffers(static_cast<GradGroup>(g));
    for (const OwnedRun& run : owned_runs(layout)) {
      const Index at = run.flat.begin - layout.owned().begin, n = run.flat.size();
      adamw.weight_decay = run.placement->spec->decay ? static_cast<float>(train.weight_decay) : 0.0f;
      backend.adamw(adamw, owned[g].rows(at, n), b.weights.view().rows(run.flat.begin, n), b.m.view().rows(at, n),
                    b.v.view().rows(at, n));
    }
    if (layout.shards > 1) {
      backend.synchronize();
      const View weights = b.weights;
      comm_of(mesh_, static_cast<GradGroup>(g))
          .all_gather(weights.rows(layout.owned().begin, layout.owned().size()), weights);
    }
    backend.fill(b.grads, 0);
  }
  return norm;
}

}  // namespace sy
