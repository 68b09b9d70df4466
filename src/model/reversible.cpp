#include "src/model/reversible.h"

#include "dist/phase.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/heads.h"

namespace sy {
namespace {

const BranchSpec& only_branch(const BlockSpec& spec, std::size_t group) {
  SY_ASSERT(spec.groups.size() == 2 && spec.groups[group].branches.size() == 1, "a reversible layer of {} groups",
            spec.groups.size());
  const BranchSpec& branch = spec.groups[group].branches.front();
  SY_ASSERT(!branch.norms.post_residual && !branch.norms.normed_residual, "{}: a norm of a reversible stream",
            branch.name);
  return branch;
}

// Columns of x: [T, 2 D] that belong to one of both streams, as heads of one sequence.
template <class Byte>
BasicHeads<Byte> half_of(BasicView<Byte> x, Index half) {
  const Index T = x.dim(0), D = x.dim(1) / 2;
  return BasicHeads<Byte>(x.reshape({1, T, 1, 2 * D})).columns(half * D, D);
}
Heads whole(View x) {
  return x.reshape({1, x.dim(0), 1, x.dim(1)});
}

// stream: [T, D] += branch(x: [T, D])
void add_branch(const LayerContext& layer, const ResidualBranch& branch, ConstView x, View stream,
                ResidualBranch::Saved& s) {
  const Arena::Scope scratch(layer.context.scratch);
  branch.forward(layer, x, stream, stream, s, s);
}

}  // namespace

ReversibleBlock::ReversibleBlock(const BlockSpec& spec, Index layer, const SublayerContext& context)
    : layer_(layer),
      f_(spec.norm, only_branch(spec, 0), context, spec.prefix_of(layer)),
      g_(spec.norm, only_branch(spec, 1), context, spec.prefix_of(layer)) {}

void ReversibleBlock::forward(const LayerContext& layer, const Streams& x, Saved& s) const {
  const ScopedPhase phase(layer.context.mesh.rank_context(), "forward pass", layer_);
  const auto run = [&](const ResidualBranch& branch, ConstView in, View stream, ResidualBranch::Saved& saved) {
    const Arena::Scope freed(layer.saved);
    add_branch(layer, branch, in, stream, saved);
  };
  run(f_, x.second, x.first, s.f);
  run(g_, x.first, x.second, s.g);
}

void ReversibleBlock::backward(const LayerContext& layer, const Streams& y, const Streams& d, Saved& s) {
  Device& b = layer.context.device;
  // Subtracts branch(in) from the stream, with its activations in layer.saved. Then adds the
  // gradient through the branch to din.
  const auto undo = [&](ResidualBranch& branch, View in, View stream, ResidualBranch::Saved& saved, View dstream,
                        View din) {
    const Arena::Scope recomputed(layer.saved);
    {
      const ScopedPhase phase(layer.context.mesh.rank_context(), "forward pass", layer_);
      run(b, ops::Scale{.x = stream, .factor = -1});
      add_branch(layer, branch, in, stream, saved);
      run(b, ops::Scale{.x = stream, .factor = -1});
    }
    const ScopedPhase phase(layer.context.mesh.rank_context(), "backward pass", layer_);
    branch.backward(layer, dstream, saved, din);
  };
  undo(g_, y.first, y.second, s.g, d.second, d.first);
  undo(f_, y.second, y.first, s.f, d.first, d.second);
}

void ReversibleBlock::append_cache_specs(std::vector<CacheSpec>& specs) const {
  for (const ResidualBranch* branch : {&f_, &g_})
    if (const auto spec = branch->sublayer().cache_spec()) specs.push_back(*spec);
}

void ReversibleStack::add(const BlockSpec& spec, Index layer, const SublayerContext& context) {
  blocks_.emplace_back(spec, layer, context);
  routers_ = context.counts.routers;
  if (const MoeSpec* moe = spec.find<MoeSpec>()) top_k_ = moe->router.route.top_k;
  for (const LshAttentionSpec* hashed : spec.all<LshAttentionSpec>()) hashed_.push_back(*hashed);
}

View ReversibleStack::forward(LayerContext layer, View x, Saved& s, const LayerHook& before_layer) const {
  Device& b = layer.context.device;
  s.streams = {x, layer.save(x.shape())};
  run(b, ops::Copy{.x = x, .y = s.streams.second});
  if (routers_ > 0) {
    const Shape all{routers_, x.dim(0), top_k_};
    s.decisions = {.experts = layer.saved.i32(all), .dispatch_mask = layer.saved.i32(all)};
  }
  layer.decisions = s.decisions;
  s.lsh_orders.clear();
  for (const LshAttentionSpec& hashed : hashed_) {
    const Index heads = hashed.heads / layer.context.mesh.layout.tp;
    const Shape order = hashed.order_shape(layer.stream.sequences, layer.stream.seq_len, heads);
    s.lsh_orders.push_back(order.size() > 0 ? layer.saved.i32(order) : View());
  }
  layer.lsh_orders = &s.lsh_orders;
  s.blocks.resize(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    before_layer(i);
    blocks_[i].forward(layer, s.streams, s.blocks[i]);
  }
  if (output_ == ReversibleOutput::concat) {
    const View both = layer.save({x.dim(0), 2 * x.dim(1)});
    run(b, ops::BroadcastHeads{.x = whole(s.streams.first), .y = half_of(both, 0)});
    run(b, ops::BroadcastHeads{.x = whole(s.streams.second), .y = half_of(both, 1)});
    return both;
  }
  const View mean = layer.save(x.shape());
  run(b, ops::Copy{.x = s.streams.first, .y = mean});
  run(b, ops::Add{.x = s.streams.second, .y = mean});
  run(b, ops::Scale{.x = mean, .factor = 0.5f});
  return mean;
}

View ReversibleStack::backward(LayerContext layer, View d, Saved& s, const LayerHook& after_layer) {
  Device& b = layer.context.device;
  const Arena::Scope scope(layer.context.scratch);
  layer.decisions = s.decisions;
  layer.decisions.replay = true;
  layer.lsh_orders = &s.lsh_orders;
  Streams gradients{d, layer.context.temp(s.streams.first.shape())};
  if (output_ == ReversibleOutput::concat) {
    gradients.first = layer.context.temp(s.streams.first.shape());
    run(b, ops::BroadcastHeads{.x = half_of(d, 0), .y = whole(gradients.first)});
    run(b, ops::BroadcastHeads{.x = half_of(d, 1), .y = whole(gradients.second)});
    d = d.reshape({2 * d.dim(0), d.dim(1) / 2}).rows(0, d.dim(0));
  } else {
    run(b, ops::Scale{.x = d, .factor = 0.5f});
    run(b, ops::Copy{.x = d, .y = gradients.second});
  }
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    blocks_[i].backward(layer, s.streams, gradients, s.blocks[i]);
    after_layer(i);
  }
  if (output_ == ReversibleOutput::concat) run(b, ops::Copy{.x = gradients.first, .y = d});
  run(b, ops::Add{.x = gradients.second, .y = d});
  return d;
}

}  // namespace sy
