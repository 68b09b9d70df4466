#include "src/model/block.h"

#include "dist/phase.h"
#include "kernels/ops/elementwise.h"

namespace sy {

ResidualBranch::ResidualBranch(const NormSpec& norm, const BranchSpec& spec, const SublayerContext& context,
                               const std::string& layer)
    : placement_(spec.norms),
      shared_norm_(spec.shared_norm),
      norm_(norm.desc(), context.store, layer + spec.norm),
      out_norm_(norm.desc(), context.store, layer + spec.out_norm),
      sublayer_(make_sublayer(spec.sublayer, context, layer + spec.name + ".")) {}

void ResidualBranch::run_sublayer(const LayerContext& layer, Output to, Saved& s) const {
  const TraceScope trace(layer.context.mesh.rank_context(), sublayer_->trace_name());
  if (!s.sublayer) s.sublayer = sublayer_->make_saved();
  sublayer_->forward(layer, s.in, to, *s.sublayer);
}

void ResidualBranch::run_sublayer_backward(const LayerContext& layer, ConstView dy, const Saved& s, View din) {
  const TraceScope trace(layer.context.mesh.rank_context(), sublayer_->trace_name());
  sublayer_->backward(layer, dy, *s.sublayer, din);
}

void ResidualBranch::forward(const LayerContext& layer, ConstView x, ConstView stream, View y, Saved& s,
                             const Saved& first) const {
  const ExecutionContext& context = layer.context;
  const Shape shape = x.shape();
  const View sum = placement_.post_residual ? layer.save(shape) : y;
  s.x = s.in = x;
  if (placement_.pre && shared_norm_) {
    s.in = first.in;
    s.moments = first.moments;
  } else if (placement_.pre) {
    const View in = layer.save(shape);
    s.moments = layer.saved.f32({shape[0], 2});
    norm_.forward(context, x, in, s.moments);
    s.in = in;
  }
  if (placement_.post_sublayer) {
    s.out = layer.save(shape);
    s.out_moments = layer.saved.f32({shape[0], 2});
    run_sublayer(layer, {.y = s.out}, s);
    const Arena::Scope scope(context.scratch);
    const bool in_place = stream.bytes() == sum.bytes();
    const View normed = in_place ? context.temp(shape) : sum;
    out_norm_.forward(context, s.out, normed, s.out_moments);
    run(context.device, ops::Add{.x = in_place ? normed : stream, .y = sum});
  } else {
    run_sublayer(layer, {.y = sum, .residual = placement_.normed_residual ? s.in : stream}, s);
  }
  if (!placement_.post_residual) return;
  s.sum = sum;
  s.moments = layer.saved.f32({shape[0], 2});
  norm_.forward(context, sum, y, s.moments);
}

void ResidualBranch::backward(const LayerContext& layer, View d, const Saved& s, View dx) {
  const ExecutionContext& context = layer.context;
  Device& b = context.device;
  const Arena::Scope scope(context.scratch);
  // Gradient with respect to the input of a norm that follows the sublayer.
  const View dsublayer = placement_.post_residual || placement_.post_sublayer ? context.temp(d.shape()) : d;
  if (placement_.post_residual) {
    run(b, ops::Fill{.x = dsublayer, .value = 0});
    norm_.backward(context, d, s.sum, s.moments, dsublayer);
    run(b, ops::Copy{.x = dsublayer, .y = d});
  }
  if (placement_.post_sublayer) {
    run(b, ops::Fill{.x = dsublayer, .value = 0});
    out_norm_.backward(context, d, s.out, s.out_moments, dsublayer);
  }
  const View din = context.temp(d.shape());
  run_sublayer_backward(layer, dsublayer, s, din);
  if (placement_.normed_residual) {  // the residual is the norm's output, not its input
    run(b, ops::Add{.x = d, .y = din});
    run(b, ops::Fill{.x = dx, .value = 0});
  }
  if (placement_.pre)
    norm_.backward(context, din, s.x, s.moments, dx);
  else
    run(b, ops::Add{.x = din, .y = dx});
}

Block::Block(const BlockSpec& spec, Index layer, const SublayerContext& context) : layer_(layer) {
  for (const ResidualGroupSpec& group : spec.groups) {
    Group& branches = groups_.emplace_back();
    for (const BranchSpec& branch : group.branches) {
      SY_ASSERT(group.branches.size() == 1 || !(branch.norms.post_residual || branch.norms.normed_residual),
                "{}: of several branches, none can replace the stream by a norm", branch.name);
      branches.emplace_back(spec.norm, branch, context, layer_prefix(layer));
    }
    SY_ASSERT(!branches.empty(), "layer {} has a group without branches", layer);
  }
  SY_ASSERT(!groups_.empty(), "layer {} has no sublayers", layer);
}

void Block::forward(const LayerContext& layer, View x, View y, Saved& s) const {
  const ScopedPhase phase(layer.context.mesh.rank_context(), "forward pass", layer_);
  std::size_t branches = 0;
  for (const Group& group : groups_) branches += group.size();
  s.resize(branches);
  auto saved = s.begin();
  for (const Group& group : groups_) {
    const View out = &group == &groups_.back() ? y : layer.save(x.shape());
    const ResidualBranch::Saved& first = *saved;
    View stream = x;
    for (const ResidualBranch& branch : group) {
      branch.forward(layer, x, stream, out, *saved++, first);
      stream = out;
    }
    x = out;
  }
}

void Block::backward(const LayerContext& layer, View d, Saved& s) {
  const ScopedPhase phase(layer.context.mesh.rank_context(), "backward pass", layer_);
  auto saved = s.rbegin();
  // NOLINTNEXTLINE(modernize-loop-convert): Clang 14 does not compile std::views::reverse
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    if (group->size() == 1) {
      group->front().backward(layer, d, *saved++, d);
      continue;
    }
    // All branches read d, so none may add to it before the others have finished.
    const Arena::Scope scope(layer.context.scratch);
    const View dx = layer.context.temp(d.shape());
    run(layer.context.device, ops::Copy{.x = d, .y = dx});
    for (auto branch = group->rbegin(); branch != group->rend(); ++branch) branch->backward(layer, d, *saved++, dx);
    run(layer.context.device, ops::Copy{.x = dx, .y = d});
  }
}

void Block::append_cache_specs(std::vector<CacheSpec>& specs) const {
  for (const Group& group : groups_)
    for (const ResidualBranch& branch : group)
      if (const auto spec = branch.sublayer().cache_spec()) specs.push_back(*spec);
}

}  // namespace sy
