#include "src/train/grad_sync.h"

#include <cmath>

namespace sy {

Comm& comm_of(const Mesh& mesh, GradGroup group) {
  switch (group) {
    case GradGroup::replicated:
      return *mesh.all;
    case GradGroup::tensor:
      return *mesh.dp;
    case GradGroup::expert:
      return *mesh.edp;
  }
  SY_ASSERT(false, "group");
}

GradSync::GradSync(const Mesh& mesh, ParamStore& store)
    : mesh_(mesh),
      store_(store),
      squares_(store.backend().tensor({1}, DType::f64)),
      factor_(store.backend().tensor({1})),
      rates_(store.backend().tensor({3})) {
  // A layer's parameters follow one another in each group.
  for (int g = 0; g < num_grad_groups; ++g)
    for (const Placement& p : store.layout().groups[g].placements) {
      constexpr std::string_view prefix = "layers.";
      if (!p.spec->name.starts_with(prefix)) continue;
      const std::size_t layer = std::stoul(p.spec->name.substr(prefix.size()));
      if (layer >= layers_.size()) layers_.resize(layer + 1);
      Range& range = layers_[layer][g];
      if (range.size() == 0) range.begin = p.offset;
      range.end = p.range().end;
    }

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

void GradSync::reduce(GradGroup group, Range flat) {
  const GroupLayout& layout = store_.layout().groups[static_cast<int>(group)];
  const View grads = store_.buffers(group).grads;
  const Index shard = layout.elements / layout.shards;
  while (flat.size() > 0) {
    const int owner = static_cast<int>(flat.begin / shard);
    const Index n = std::min(flat.end, (owner + 1) * shard) - flat.begin;
    comm_of(mesh_, group).start_reduce(grads.rows(flat.begin, n), owner);
    flat.begin += n;
  }
}

void GradSync::layer_done(Index layer) {
  for (int g = 0; g < num_grad_groups; ++g) {
    const GradGroup group = static_cast<GradGroup>(g);
    const GroupLayout& layout = store_.layout().groups[g];
    if (layout.shards == 1 || !comm_of(mesh_, group).asynchronous()) continue;
    // Replicas' gradients must be added up first, which is done for all of them at once.
    if (replicas_ && group == GradGroup::tensor) continue;
    const Range flat = layers_[layer][g];
    if (flat.size() == 0) continue;
    comm_of(mesh_, group).mark();
    reduce(group, flat);
    reduced_[g].push_back(flat);
  }
}

View GradSync::owned_gradients(GradGroup group) {
  const Range owned = store_.layout().groups[static_cast<int>(group)].owned();
  return store_.buffers(group).grads.view().rows(owned.begin, owned.size());
}

void GradSync::reduce_rest(GradGroup group) {
  Comm& comm = comm_of(mesh_, group);
  const GroupLayout& layout = store_.layout().groups[static_cast<int>(group)];
  std::vector<Range>& done = reduced_[static_cast<int>(group)];
  if (done.empty()) {
    comm.reduce_scatter(store_.buffers(group).grads, owned_gradients(group));
    return;
  }
  comm.mark();
  Index end = layout.elements;
  for (const Range& r : done) {
    reduce(group, {r.end, end});
    end = r.begin;
  }
  reduce(group, {0, end});
  comm.wait();
  done.clear();
}

// Every parameter lies in exactly one rank's owned range, but for those that replicas hold too: the first of these counts.
void GradSync::add_squares(GradGroup group) {
  Backend& backend = store_.backend();
  const ConstView owned = owned_gradients(group);
  if (!replicas_ || replicas_->rank() == 0) return backend.sum_squares(owned, squares_);
  const GroupLayout& layout = store_.layout().groups[static_cast<int>(group)];
  for (const OwnedRun& run : owned_runs(layout)) {
    bool counted = true;
    for (const Replicated& r : replicated_) counted &= r.placement != run.placement;
    if (counted) backend.sum_squares(owned.rows(run.flat.begin - layout.owned().begin, run.flat.size()), squares_);
  }
}

void GradSync::step(const Config::Train& train, double lr, Index step) {
  Backend& backend = store_.backend();
  sum_replicas();
  backend.fill(squares_, 0);
  for (int g = 0; g < num_grad_groups; ++g) {
    const GroupLayout& layout = store_.layout().groups[g];
    if (layout.elements == 0) continue;
    const GradGroup group = static_cast<GradGroup>(g);
    if (layout.shards > 1) reduce_rest(group);
    add_squares(group);
  }
  mesh_.all->all_reduce(squares_);
  backend.clip_factor(squares_, static_cast<float>(train.clip), factor_);

  const auto bias = [&](double beta) { return static_cast<float>(1 - std::pow(beta, static_cast<double>(step))); };
  const float rates[] = {static_cast<float>(lr), bias(train.beta1), bias(train.beta2)};
  backend.to_device(rates, rates_);
  backend.repeated("update", [&] { update(train); });
}

void GradSync::update(const Config::Train& train) {
  Backend& backend = store_.backend();
  AdamW adamw{static_cast<float>(train.beta1), static_cast<float>(train.beta2), static_cast<float>(train.eps), 0};
  for (int g = 0; g < num_grad_groups; ++g) {
    const GroupLayout& layout = store_.layout().groups[g];
    if (layout.elements == 0) continue;
    ParamStore::Buffers& b = store_.buffers(static_cast<GradGroup>(g));
    const View weights = b.weights, owned = owned_gradients(static_cast<GradGroup>(g));
    for (const OwnedRun& run : owned_runs(layout)) {
      const Index at = run.flat.begin - layout.owned().begin, n = run.flat.size();
      adamw.weight_decay = run.placement->spec->decay ? static_cast<float>(train.weight_decay) : 0.0f;
      const View computed = weights.rows(run.flat.begin, n);  // what the model computes with
      const bool rounded = b.master.view().present();
      backend.adamw(adamw, factor_, rates_, owned.rows(at, n), rounded ? b.master.view().rows(at, n) : computed,
                    b.m.view().rows(at, n), b.v.view().rows(at, n), rounded ? computed : View{});
    }
    if (layout.shards > 1)
      comm_of(mesh_, static_cast<GradGroup>(g))
          .all_gather(weights.rows(layout.owned().begin, layout.owned().size()), weights);
    backend.fill(b.grads, 0);
  }
}

double GradSync::norm() const {
  double squares = 0;
  store_.backend().to_host(squares_, &squares);
  return std::sqrt(squares);
}

}  // namespace sy
