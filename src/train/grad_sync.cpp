#include "src/train/grad_sync.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dist/activity.h"

namespace sy {

GradSync::GradSync(const Mesh& mesh, ParamStore& store)
    : mesh_(mesh),
      store_(store),
      backend_(store.backend()),
      prepared_(store.prepared()),
      squares_(backend_.tensor({1}, DType::f64)),
      factor_(backend_.tensor({1})),
      rates_(backend_.tensor({3})) {
  for (std::size_t g = 0; g < store.layout().groups.size(); ++g) {
    const GroupLayout& layout = store.layout().groups[g];
    Group& group = groups_.emplace_back(Group{layout, store.buffers(g), mesh.over(layout.axes)});
    for (const Placement& p : layout.placements)
      for (int d = 0; d < p.spec->shape.size(); ++d)
        if (p.spec->split[d] == Axis::tp && replicas_of(p.spec->shape[d], mesh.layout.tp) > 1)
          group.replicated.push_back(&p);
    SY_ASSERT(group.replicated.empty() || mesh.replicas, "ranks hold the same kv heads and are not joined");
  }
}

void GradSync::sum_replicas() {
  for (const Group& group : groups_)
    for (const Placement* p : group.replicated)
      mesh_.replicas->all_reduce(group.buffers.grads.view().rows(p->offset, p->box.elements()));
}

View GradSync::Group::owned_gradients() const {
  return buffers.grads.view().rows(layout.owned().begin, layout.owned().size());
}

void GradSync::reduce(Group& group, Range flat) {
  group.comm.start_reduce(group.layout.by_owner(group.buffers.grads, flat));
}

BackwardProgress GradSync::progress() {
  return {[this](Index part) { part_done(part); }, [this] { start_complete(); }};
}

void GradSync::start_complete() {
  for (Group& group : groups_) {
    for (const Range& flat : group.complete) reduce(group, flat);
    group.reduced.insert(group.reduced.end(), group.complete.begin(), group.complete.end());
    group.complete.clear();
  }
}

// Gradients on a device always hold their values (ParamStore::clear_gradients), so a complete range
// can be reduced directly. Ranges of replicated kv heads are excluded, because sum_replicas() must
// sum them first.
void GradSync::part_done(Index part) {
  start_complete();
  for (Group& group : groups_) {
    if (!group.overlaps()) continue;
    Range flat = group.layout.parts[static_cast<std::size_t>(part)];
    const auto add = [&](Index begin) {
      if (begin < flat.end) group.complete.push_back({begin, flat.end});
    };
    for (std::size_t i = group.replicated.size(); i-- > 0;) {
      const Placement& p = *group.replicated[i];
      const Range own{p.offset, p.offset + p.box.elements()};
      if (own.begin < flat.begin || own.end > flat.end) continue;
      add(own.end);
      flat.end = own.begin;
    }
    add(flat.begin);
    if (!group.complete.empty()) group.comm.mark();
  }
}

void GradSync::reduce_rest(Group& group) {
  group.complete.clear();
  if (group.reduced.empty()) return group.comm.reduce_scatter(group.buffers.grads, group.owned_gradients());
  group.comm.mark();
  Index end = group.layout.elements;
  for (const Range& done : group.reduced) {
    reduce(group, {done.end, end});
    end = done.begin;
  }
  reduce(group, {0, end});
  group.comm.wait();
  group.reduced.clear();
}

// Each parameter is in exactly one rank's owned range, except those of kv replicas: only the first
// replica counts them.
void GradSync::add_squares(const Group& group) {
  const ConstView owned = group.owned_gradients();
  if (!mesh_.replicas || mesh_.replicas->rank() == 0) return backend_.sum_squares(owned, squares_);
  for (const OwnedRun& run : owned_runs(group.layout)) {
    const auto& replicated = group.replicated;
    if (std::find(replicated.begin(), replicated.end(), run.placement) != replicated.end()) continue;
    backend_.sum_squares(owned.rows(run.flat.begin - group.layout.owned().begin, run.flat.size()), squares_);
  }
}

void GradSync::step(const Config::Train& train, double lr, Index step) {
  const Doing doing("update of the weights");
  Traced part("gradients");
  store_.whole();  // finishes the last all-gather if no forward has waited for it
  store_.finish_gradients();
  sum_replicas();
  backend_.fill(squares_, 0);
  for (Group& group : groups_) {
    if (group.layout.shards > 1) reduce_rest(group);
    add_squares(group);
  }
  mesh_.world().all_reduce(squares_);
  backend_.clip_factor(squares_, static_cast<float>(train.clip), factor_);

  const auto bias = [&](double beta) { return static_cast<float>(1 - std::pow(beta, static_cast<double>(step))); };
  const float rates[] = {static_cast<float>(lr), bias(train.beta1), bias(train.beta2)};
  part.next("optimizer");
  backend_.to_device(rates, rates_);
  backend_.repeated("update", [&] { update(train); });
  std::vector<WeightFetch::Group> updated;
  for (Group& group : groups_)
    if (group.overlaps()) updated.push_back({&group.layout, group.buffers.weights, &group.comm});
  store_.fetch(std::move(updated));
}

void GradSync::update(const Config::Train& train) {
  prepared_.invalidate();
  AdamW adamw{static_cast<float>(train.beta1), static_cast<float>(train.beta2), static_cast<float>(train.eps), 0};
  for (Group& group : groups_) {
    const ParamStore::Buffers& b = group.buffers;
    const Range all_owned = group.layout.owned();
    const View weights = b.weights, gradients = group.owned_gradients();
    for (const OwnedRun& run : owned_runs(group.layout)) {
      const Index at = run.flat.begin - all_owned.begin, n = run.flat.size();
      // the weights that the model computes with
      const View computed = weights.rows(run.flat.begin, n);
      const bool rounded = b.master.view().present();
      switch (run.placement->spec->rule) {
        case UpdateRule::adamw:
        case UpdateRule::adamw_without_decay: {
          const bool decays = run.placement->spec->rule == UpdateRule::adamw;
          adamw.weight_decay = decays ? static_cast<float>(train.weight_decay) : 0.0f;
          backend_.adamw(adamw, factor_, rates_, gradients.rows(at, n),
                         rounded ? b.master.view().rows(at, n) : computed, b.m.view().rows(at, n),
                         b.v.view().rows(at, n), rounded ? computed : View{});
        }
      }
    }
    if (group.layout.shards > 1 && !group.overlaps())
      group.comm.all_gather(weights.rows(all_owned.begin, all_owned.size()), weights);
  }
  store_.clear_gradients();
}

double GradSync::norm() const {
  double squares = 0;
  backend_.to_host(squares_, &squares);
  return std::sqrt(squares);
}

}  // namespace sy
