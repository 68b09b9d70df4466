#include "src/train/distributed_optimizer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "dist/phase.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/qk_clip.h"

namespace sy {
namespace {

// Returns each value of ParamSpec::lr_factor once, in ascending order.
std::vector<double> lr_factors(const ParamStore& store) {
  std::set<double> factors;
  for (const ParamSpec& spec : store.specs()) factors.insert(spec.lr_factor);
  return {factors.begin(), factors.end()};
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(const Mesh& mesh, ParamStore& store, View max_logits)
    : mesh_(mesh),
      store_(store),
      device_(store.device()),
      packed_weights_(store.packed_weights()),
      max_logits_(max_logits),
      squares_(device_.tensor({1}, DType::f64)),
      param_squares_(device_.tensor({std::ssize(store.specs())}, DType::f64)),
      lr_factors_(lr_factors(store)),
      clip_coefficient_(device_.tensor({1})),
      step_scalars_(device_.tensor({std::ssize(lr_factors_), 3})) {
  Index ranges = 0;
  for (std::size_t g = 0; g < store.layout().groups.size(); ++g) {
    const GroupLayout& layout = store.layout().groups[g];
    if (layout.frozen) continue;
    Group& group =
        groups_.emplace_back(Group{layout, store.buffers(g), mesh.over(layout.axes), update_rule(layout.optimizer)});
    if (group.rule.matrix_rule) group.matrices = std::make_unique<MatrixUpdate>(store, g, mesh.world());
    for (const ParamSlice& p : layout.slices)
      if (is_kv_replicated(*p.spec, mesh.layout.tp)) group.kv_replicated.push_back(&p);
    group.first_range = ranges;
    ranges += std::ssize(owned_ranges(layout));
    SY_ASSERT(group.kv_replicated.empty() || mesh.kv_replicas, "ranks hold the same kv heads and are not joined");
  }
}

void DistributedOptimizer::sum_kv_replicas() {
  for (const Group& group : groups_)
    for (const ParamSlice* p : group.kv_replicated)
      mesh_.kv_replicas->all_reduce(group.buffers.grads.view().rows(p->offset, p->box.elements()));
}

void DistributedOptimizer::reduce(Group& group, Range flat, ComputePoint computed) {
  group.in_flight.join(group.comm.start_reduce(group.layout.by_owner(group.buffers.grads, flat), computed));
}

void DistributedOptimizer::reduce_ready_buckets() {
  for (Group& group : groups_) {
    for (const Range& flat : group.ready) reduce(group, flat, group.computed);
    group.reduced.insert(group.reduced.end(), group.ready.begin(), group.ready.end());
    group.ready.clear();
  }
}

// Ranges of replicated kv heads are excluded, because sum_kv_replicas() must sum them first.
void DistributedOptimizer::mark_bucket_ready(Index bucket) {
  reduce_ready_buckets();
  for (Group& group : groups_) {
    if (!group.overlaps()) continue;
    Range flat = group.layout.buckets[static_cast<std::size_t>(bucket)];
    store_.finish_gradients(group.buffers.grads.view().rows(flat.begin, flat.size()));
    const auto add = [&](Index begin) {
      if (begin < flat.end) group.ready.push_back({begin, flat.end});
    };
    for (std::size_t i = group.kv_replicated.size(); i-- > 0;) {
      const ParamSlice& p = *group.kv_replicated[i];
      const Range own{p.offset, p.offset + p.box.elements()};
      if (own.begin < flat.begin || own.end > flat.end) continue;
      add(own.end);
      flat.end = own.begin;
    }
    add(flat.begin);
    if (!group.ready.empty()) group.computed = group.comm.compute_point();
  }
}

void DistributedOptimizer::reduce_remaining(Group& group) {
  group.ready.clear();
  if (group.reduced.empty()) return group.comm.reduce_scatter(group.buffers.grads, group.owned_gradients());
  const ComputePoint computed = group.comm.compute_point();
  Index end = group.layout.elements;
  for (const Range& reduced : group.reduced) {
    reduce(group, {reduced.end, end}, computed);
    end = reduced.begin;
  }
  reduce(group, {0, end}, computed);
  group.in_flight.wait();
  group.reduced.clear();
}

// Each parameter is in exactly one rank's owned range, except those of kv replicas: only the first
// replica counts them.
void DistributedOptimizer::add_squares(const Group& group) {
  if (!mesh_.kv_replicas || mesh_.kv_replicas->rank() == 0)
    return run(device_, ops::SumSquares{.x = group.owned_gradients(), .out = squares_});
  for_counted(group, [&](const ParamSpec*, ConstView gradient) {
    run(device_, ops::SumSquares{.x = gradient, .out = squares_});
  });
}

void DistributedOptimizer::for_counted(const Group& group,
                                       const std::function<void(const ParamSpec*, ConstView)>& f) const {
  const bool counts_replicated = !mesh_.kv_replicas || mesh_.kv_replicas->rank() == 0;
  for (const OwnedRange& range : owned_ranges(group.layout))
    if (counts_replicated || std::ranges::find(group.kv_replicated, range.slice) == group.kv_replicated.end())
      f(range.slice->spec,
        group.owned_gradients().rows(range.flat.begin - group.layout.owned().begin, range.flat.size()));
}

void DistributedOptimizer::sum_param_squares() {
  run(device_, ops::Fill{.x = param_squares_, .value = 0});
  for (const Group& group : groups_)
    for_counted(group, [&](const ParamSpec* spec, ConstView gradient) {
      const View sum = param_squares_.view().rows(spec - store_.specs().data(), 1);
      run(device_, ops::SumSquares{.x = gradient, .out = sum});
    });
  mesh_.world().all_reduce(param_squares_);
}

void DistributedOptimizer::step(const Config::Train& train, double lr, Index step, double limit) {
  RankContext& rank = mesh_.rank_context();
  const ScopedPhase phase(rank, "update of the weights");
  TraceScope trace(rank, "gradients");
  store_.finish_all_gather();  // finishes the last all-gather if no forward has waited for it
  store_.finish_gradients();
  sum_kv_replicas();
  run(device_, ops::Fill{.x = squares_, .value = 0});
  for (Group& group : groups_) {
    if (group.layout.shards > 1) reduce_remaining(group);
    add_squares(group);
  }
  mesh_.world().all_reduce(squares_);
  if (measures_params_) sum_param_squares();
  run(device_, ops::ClipCoefficient{.squares = squares_,
                                    .clip = static_cast<float>(train.clip),
                                    .coefficient = clip_coefficient_,
                                    .limit = limit});

  if (max_logits_) mesh_.world().all_reduce(max_logits_, Reduce::max);

  trace.next("optimizer");
  std::vector<float> scalars;
  for (const double factor : lr_factors_)
    for (const float scalar : step_scalars(train, lr * factor, step)) scalars.push_back(scalar);
  device_.to_device(scalars.data(), step_scalars_);
  if (bit_sums_.view().present()) run(device_, ops::Fill{.x = bit_sums_, .value = 0});
  update(train);
  std::vector<ParamAllGather::Group> updated;
  for (Group& group : groups_)
    if (group.overlaps()) updated.push_back({&group.layout, group.buffers.weights, &group.comm});
  store_.start_all_gather(updated);
}

void DistributedOptimizer::update(const Config::Train& train) {
  const bool whole_matrices =
      std::ranges::any_of(groups_, [](const Group& group) { return group.matrices != nullptr; });
  device_.graph_region("update", [&] {
    for (const Group& group : groups_)
      for_owned(group, train,
                [&](const OwnedRange&, const UpdateOperands& operands) { group.rule.update(device_, operands); });
    if (!whole_matrices) finish_update(train);
  });
  if (!whole_matrices) return;
  // The memory of the gradients holds the matrices, then their directions.
  for (const Group& group : groups_)
    if (group.matrices) group.matrices->run(group.owned_gradients());
  device_.graph_region("update of matrices", [&] {
    for (const Group& group : groups_)
      if (group.matrices)
        for_owned(group, train, [&](const OwnedRange&, const UpdateOperands& operands) {
          apply_direction(device_, operands, operands.gradient);
        });
    finish_update(train);
  });
}

void DistributedOptimizer::clip_queries_and_keys(const Config::Train& train) {
  for (const Group& group : groups_)
    for_owned(group, train, [&](const OwnedRange& range, const UpdateOperands& x) {
      const ParamSpec& spec = *range.slice->spec;
      if (!spec.qk_heads) return;
      const QkHeads& heads = *spec.qk_heads;
      const Index head_elements = spec.shape.elements(1);
      if (x.bit_sums) run(device_, ops::Fill{.x = x.bit_sums.rows(1, 1), .value = 0});
      run(device_, ops::QkClip{.coefficient = clip_coefficient_,
                               .max_logits = max_logits_.rows(heads.first, heads.heads),
                               .threshold = static_cast<float>(train.qk_clip),
                               .kv_heads = heads.kv_heads,
                               .keys = heads.keys,
                               .head_elements = head_elements,
                               .shared = heads.shared_rows * spec.shape.elements(2),
                               .offset = range.slice->box.begin[0] * head_elements + range.local.begin,
                               .w = x.weight,
                               .rounded = x.rounded});
      add_bit_sums(device_, x, 1);
    });
  run(device_, ops::Fill{.x = max_logits_, .value = 0});
}

void DistributedOptimizer::for_owned(const Group& group, const Config::Train& train, const OwnedUpdate& f) {
  const ParamStore::Buffers& b = group.buffers;
  const View gradients = group.owned_gradients();
  Index i = group.first_range;
  for (const OwnedRange& range : owned_ranges(group.layout)) {
    const Index at = range.flat.begin - group.layout.owned().begin, n = range.flat.size();
    // the weights that the model computes with
    const View computed = b.weights.view().rows(range.flat.begin, n);
    const bool rounded = b.master.view().present();
    const Index factor = std::ranges::find(lr_factors_, range.slice->spec->lr_factor) - lr_factors_.begin();
    std::vector<View> state;
    for (const Tensor& tensor : b.state) state.push_back(tensor.view().rows(at, n));
    f(range, {.hyperparameters = train,
              .decays = range.slice->spec->decays,
              .clip_coefficient = clip_coefficient_,
              .step_scalars = step_scalars_.view().rows(factor, 1).reshape({3}),
              .gradient = gradients.rows(at, n),
              .weight = rounded ? b.master.view().rows(at, n) : computed,
              .rounded = rounded ? computed : View{},
              .state = state,
              .bit_sums = bit_sums_.view().present() ? bit_sums_.view().rows(i, 1).reshape({2}) : View{}});
    ++i;
  }
}

void DistributedOptimizer::finish_update(const Config::Train& train) {
  if (max_logits_) clip_queries_and_keys(train);
  packed_weights_.invalidate();
  for (const Group& group : groups_)
    if (!group.overlaps()) group.layout.all_gather(mesh_, group.buffers.weights);
  store_.clear_gradients();
}

void DistributedOptimizer::check_memory(bool checks) {
  const Index ranges =
      groups_.empty() ? 0 : groups_.back().first_range + std::ssize(owned_ranges(groups_.back().layout));
  bit_sums_ = checks && ranges > 0 ? device_.tensor({ranges, 2}, DType::i32) : Tensor{};
  digests_.clear();
}

std::string DistributedOptimizer::changed(const std::vector<std::int32_t>& sums) const {
  if (digests_.empty()) return "";
  for (const Group& group : groups_) {
    std::size_t i = static_cast<std::size_t>(group.first_range);
    for (const OwnedRange& range : owned_ranges(group.layout)) {
      if (sums[i] != digests_[i])
        return fmt::format(
            "weights or optimizer state of {} have changed in the memory of rank {} since the last update",
            range.slice->spec->name, mesh_.rank);
      ++i;
    }
  }
  return "";
}

std::vector<std::int32_t> DistributedOptimizer::bit_sums(Index which) const {
  std::vector<std::int32_t> both(static_cast<std::size_t>(bit_sums_.view().elements())), sums;
  device_.to_host(bit_sums_, both.data());
  for (auto i = static_cast<std::size_t>(which); i < both.size(); i += 2) sums.push_back(both[i]);
  return sums;
}

std::string DistributedOptimizer::changed_in_last_step() {
  if (!bit_sums_.view().present()) return "";
  std::string text = changed(bit_sums(0));
  digests_ = bit_sums(1);
  return text;
}

std::string DistributedOptimizer::changed_since_last_step() {
  if (digests_.empty()) return "";
  run(device_, ops::Fill{.x = bit_sums_, .value = 0});
  for (const Group& group : groups_)
    for_owned(group, {}, [&](const OwnedRange&, const UpdateOperands& x) { add_bit_sums(device_, x, 0); });
  return changed(bit_sums(0));
}

double DistributedOptimizer::gradient_norm() const {
  double squares = 0;
  device_.to_host(squares_, &squares);
  return std::sqrt(squares);
}

bool DistributedOptimizer::skipped() const {
  float coefficient = 0;
  device_.to_host(clip_coefficient_, &coefficient);
  return std::isnan(coefficient);
}

std::vector<double> DistributedOptimizer::param_norms() const {
  std::vector<double> norms(store_.specs().size());
  device_.to_host(param_squares_, norms.data());
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

}  // namespace sy
