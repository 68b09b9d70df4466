#include "src/model/block.h"

#include "dist/phase.h"
#include "kernels/ops/elementwise.h"

namespace sy {

ResidualBranch::ResidualBranch(const NormSpec& norm, const BranchSpec& spec, const SublayerContext& context,
                               const std::string& layer)
    : placement_(spec.norms),
      scale_(spec.scale),
      shared_norm_(spec.shared_norm),
      norm_(norm, context.store, layer + spec.norm),
      out_norm_(norm, context.store, layer + spec.out_norm),
      sublayer_(make_sublayer(spec.sublayer, context, layer + spec.name + ".")) {}

void ResidualBranch::run_sublayer(const LayerContext& layer, Output to, Saved& s) const {
  const TraceScope trace(layer.context.mesh.rank_context(), sublayer_->trace_name());
  if (!s.sublayer) s.sublayer = sublayer_->make_saved();
  std::optional<Arena::Scope> freed;
  if (sublayer_->is_freed(layer.recompute)) freed.emplace(layer.saved);
  sublayer_->forward(layer, s.in, to, *s.sublayer);
}

void ResidualBranch::normalize(const LayerContext& layer, Saved& s) const {
  const View in = layer.inputs().take(s.x.shape(), layer.context.dtype);
  norm_.forward(layer, s.x, in, s.moments);
  s.in = in;
}

void ResidualBranch::run_sublayer_backward(const LayerContext& layer, ConstView dy, Saved& s, View din) {
  const TraceScope trace(layer.context.mesh.rank_context(), sublayer_->trace_name());
  const Arena::Scope saved(layer.saved), scratch(layer.context.scratch);
  if (layer.recompute == Recompute::norms && placement_.pre) normalize(layer, s);
  sublayer_->recompute(layer, s.in, *s.sublayer);
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
    s.moments = norm_.make_moments(layer, shape[0]);
    normalize(layer, s);
  }
  const ConstView residual = placement_.normed_residual ? s.in : stream;
  const bool in_place = residual.bytes() == sum.bytes();
  // sum = residual + scale * out. out: sum itself, unless that holds the residual
  const auto add_scaled = [&](View out) {
    if (scale_ != 1) run(context.device, ops::Scale{.x = out, .factor = scale_});
    run(context.device, ops::Add{.x = in_place ? ConstView(out) : residual, .y = sum});
  };
  if (placement_.post_sublayer) {
    s.out = layer.save(shape);
    s.out_moments = out_norm_.make_moments(layer, shape[0]);
    run_sublayer(layer, {.y = s.out}, s);
    const Arena::Scope scope(context.scratch);
    const View normed = in_place ? context.temp(shape) : sum;
    out_norm_.forward(layer, s.out, normed, s.out_moments);
    add_scaled(normed);
  } else if (scale_ != 1) {
    const Arena::Scope scope(context.scratch);
    const View out = in_place ? context.temp(shape) : sum;
    run_sublayer(layer, {.y = out}, s);
    add_scaled(out);
  } else {
    run_sublayer(layer, {.y = sum, .residual = residual}, s);
  }
  if (!placement_.post_residual) return;
  s.sum = sum;
  s.moments = norm_.make_moments(layer, shape[0]);
  norm_.forward(layer, sum, y, s.moments);
}

void ResidualBranch::backward(const LayerContext& layer, View d, Saved& s, View dx) {
  const ExecutionContext& context = layer.context;
  Device& b = context.device;
  const Arena::Scope scope(context.scratch);
  // Gradient with respect to the input of a norm that follows the sublayer.
  const View dnormed = placement_.post_residual || placement_.post_sublayer ? context.temp(d.shape()) : View{};
  if (placement_.post_residual) {
    norm_.backward(layer, d, s.sum, s.moments, dnormed);
    run(b, ops::Copy{.x = dnormed, .y = d});
  }
  ConstView dout = d;  // gradient with respect to the sublayer's output
  if (scale_ != 1) {
    const View scaled = context.temp(d.shape());
    run(b, ops::Copy{.x = d, .y = scaled});
    run(b, ops::Scale{.x = scaled, .factor = scale_});
    dout = scaled;
  }
  if (placement_.post_sublayer) {
    out_norm_.backward(layer, dout, s.out, s.out_moments, dnormed);
    dout = dnormed;
  }
  const View din = context.temp(d.shape());
  run_sublayer_backward(layer, dout, s, din);
  if (placement_.normed_residual) {  // the residual is the norm's output, not its input
    run(b, ops::Add{.x = d, .y = din});
    run(b, ops::Fill{.x = dx, .value = 0});
  }
  if (placement_.pre)
    norm_.backward(layer, din, s.x, s.moments, dx, true);
  else
    run(b, ops::Add{.x = din, .y = dx});
}

Block::Block(const BlockSpec& spec, Index layer, const SublayerContext& context) : layer_(layer) {
  for (const ResidualGroupSpec& group : spec.groups) {
    Group& branches = groups_.emplace_back();
    for (const BranchSpec& branch : group.branches) {
      SY_ASSERT(group.branches.size() == 1 || !(branch.norms.post_residual || branch.norms.normed_residual),
                "{}: of several branches, none can replace the stream by a norm", branch.name);
      branches.emplace_back(spec.norm, branch, context, spec.prefix_of(layer));
    }
    SY_ASSERT(!branches.empty(), "layer {} has a group without branches", layer);
  }
  SY_ASSERT(!groups_.empty(), "layer {} has no sublayers", layer);
}

void Block::forward(const LayerContext& layer, View x, View y, Saved& s) const {
  s.x = x;
  s.y = y;
  // Frees the activations that backward recomputes or does not need.
  std::optional<Arena::Scope> freed;
  if (layer.recompute == Recompute::block || layer.cache) freed.emplace(layer.saved);
  run_forward(layer, s);
}

void Block::run_forward(const LayerContext& layer, Saved& s) const {
  const ScopedPhase phase(layer.context.mesh.rank_context(), "forward pass", layer_);
  std::size_t branches = 0;
  for (const Group& group : groups_) branches += group.size();
  s.branches.resize(branches);
  auto saved = s.branches.begin();
  View x = s.x;
  for (const Group& group : groups_) {
    const View out = &group == &groups_.back() ? s.y : layer.save(x.shape());
    const Arena::Scope inputs(layer.context.scratch);
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
  const Arena::Scope recomputed(layer.saved);
  if (layer.recompute == Recompute::block) run_forward(layer, s);  // without the routing hook
  const ScopedPhase phase(layer.context.mesh.rank_context(), "backward pass", layer_);
  auto saved = s.branches.rbegin();
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
