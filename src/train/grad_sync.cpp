#include "src/train/grad_sync.h"

#include <cmath>

namespace sy {

Comm& comm_of(const Mesh& mesh, GradGroup group) {
  switch (group) {
    case GradGroup::replicated: return *mesh.world;
    case GradGroup::tensor: return *mesh.dp;
    case GradGroup::expert: return *mesh.edp;
  }
  SY_ASSERT(false, "group");
}

double GradSync::step(const Config::Train& train, double lr, Index step) {
  Backend& backend = store_.backend();
  const Arena::Scope scope(scratch_);
  std::array<View, num_grad_groups> owned;  // [n / shards] summed gradients of the owned range

  double squares = 0;
  for (int g = 0; g < num_grad_groups; ++g) {
    const GroupLayout& layout = store_.layout().groups[g];
    if (layout.elements == 0) continue;
    const View grads = store_.buffers(static_cast<GradGroup>(g)).grads;
    if (layout.shards == 1) {
      owned[g] = grads;
    } else {
      owned[g] = scratch_.f32({layout.owned().size()});
      backend.synchronize();
      comm_of(mesh_, static_cast<GradGroup>(g)).reduce_scatter(grads, owned[g]);
    }
    // Every parameter lies in exactly one rank's owned range, however it is sharded or replicated.
    const View sum = scratch_.take({1}, DType::f64);
    backend.sum_squares(owned[g], sum);
    double part = 0;
    backend.to_host(sum, &part);
    squares += part;
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
