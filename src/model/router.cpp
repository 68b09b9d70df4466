#include "src/model/router.h"

#include <algorithm>
#include <cmath>

namespace sy {

Index expert_capacity(double factor, Index top_k, Index tokens, Index experts) {
  if (factor == 0) return 0;
  const double exact = factor * static_cast<double>(top_k * tokens) / static_cast<double>(experts);
  // If the exact product is an integer (1.1 * 20 / 2), the rounding of `factor` must not add 1.
  return std::max<Index>(1, static_cast<Index>(std::ceil(exact * (1 - 1e-12))));
}

Router::Router(const MoeSpec& spec, Index d_model, ParamStore& store, const std::string& prefix, RouterTables tables)
    : spec_(spec.router),
      experts_(spec.experts),
      logits_(store, store.get(prefix + "router.weight"), d_model, store.find(prefix + "router.bias")),
      tables_(tables) {
  if (spec_.learned_noise_stddev) noise_stddev_.emplace(store, store.get(prefix + "router.noise.weight"), d_model);
  if (spec_.noise) spec_.noise->stream = hash_name(prefix + "router.noise");
  if (spec_.jitter) spec_.jitter->stream = hash_name(prefix + "router.jitter");
}

Draw Router::with_seed(Draw draw, const Batch& batch) {
  draw.seed = batch.seed;
  return draw;
}

ConstView Router::jittered_input(const LayerContext& layer, ConstView x) const {
  if (!spec_.jitter || !layer.batch.token_numbers) return x;
  const ExecutionContext& context = layer.context;
  const View y = context.temp(x.shape());
  context.backend.jitter(with_seed(*spec_.jitter, layer.batch), context.own_tokens(layer.batch.token_numbers), x, false,
                         y);
  return y;
}

void Router::forward(const LayerContext& layer, ConstView x, Saved& s, const RoutingHook* routing_hook) const {
  const ExecutionContext& context = layer.context;
  const Batch& batch = layer.batch;
  Backend& b = context.backend;
  const Index T = layer.own_tokens(), E = experts_, k = spec_.route.top_k;
  const ExpertPlacement placement = this->placement(context);
  s.logits = layer.saved.f32({T, E});
  s.experts = layer.saved.i32({T, k});
  Routing& r = s.routing;
  r.weights = layer.saved.f32({T, k});
  r.dispatch_layout = DispatchLayout(placement, T, k, E, layer.saved, context.scratch);

  const Arena::Scope scope(context.scratch);
  const LoadBalanceState& load_balance = layer.load_balance;
  const Shape of_segments{load_balance.counts.dim(1), E};
  const View dispatch_mask = context.scratch.i32({T, k});
  const ConstView in = jittered_input(layer, x);
  logits_.forward(context, in, s.logits);
  View noise;
  if (scales_noise(layer)) {
    s.noise_stddev = layer.saved.f32({T, E});
    noise_stddev_->forward(context, in, s.noise_stddev);
    b.noisy_gating_forward(with_seed(*spec_.noise, batch), context.own_tokens(batch.token_numbers), s.noise_stddev,
                           s.logits);
  } else if (spec_.noise && batch.token_numbers) {
    noise = context.scratch.f32({T, E});
    b.draw(with_seed(*spec_.noise, batch), context.own_tokens(batch.token_numbers), noise);
  }
  b.route_forward(spec_.route, s.logits, tables_.bias, noise, s.experts, r.weights,
                  load_balance.counts.reshape(of_segments), load_balance.probability.reshape(of_segments),
                  load_balance.z_squared);
  apply_capacity(layer, s.experts, r.weights, dispatch_mask);
  const Index real = std::clamp<Index>(batch.tokens() - batch.padding - context.mesh.coord.tp * T, 0, T);
  if (real < T) b.fill(dispatch_mask.rows(real, T - real), 0);
  if (routing_hook) (*routing_hook)({s.logits, s.experts, r.weights, dispatch_mask});
  r.dispatch_layout.build(b, placement, s.experts, dispatch_mask, load_balance.tokens_per_expert.reshape({E}),
                          context.scratch);
}

void Router::apply_capacity(const LayerContext& layer, ConstView experts, ConstView weights, View dispatch_mask) const {
  const ExecutionContext& context = layer.context;
  const Batch& batch = layer.batch;
  const bool by_rank = spec_.capacity_scope == CapacityScope::rank;
  const Index scope_tokens = by_rank ? layer.own_tokens() : batch.seq_len;
  const Index capacity =
      batch.dropless ? 0 : expert_capacity(spec_.capacity_factor, spec_.route.top_k, scope_tokens, experts_);
  const CapacityDesc desc{spec_.drop_order, capacity};
  const bool one_scope = by_rank || capacity == 0;
  if (one_scope || layer.own_tokens() % batch.seq_len == 0)
    return context.backend.apply_capacity(desc, experts, weights,
                                          one_scope ? 1 : std::max<Index>(1, layer.own_tokens() / batch.seq_len),
                                          experts_, dispatch_mask);
  // The sequence is split over tensor-parallel ranks. Each of them decides for all of it, and uses
  // the result of its own tokens.
  const Arena::Scope scope(context.scratch);
  const ConstView all_experts = gather_tokens(context, context.scratch, experts);
  const ConstView all_weights = gather_tokens(context, context.scratch, weights);
  const View all_masks = context.scratch.i32(all_experts.shape());
  context.backend.apply_capacity(desc, all_experts, all_weights, batch.sequences, experts_, all_masks);
  context.backend.copy(context.own_tokens(all_masks), dispatch_mask);
}

void Router::backward(const LayerContext& layer, ConstView dweights, ConstView x, const Saved& s, View dx) {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  const View dlogits = context.temp(s.logits.shape());
  const float z_factor = static_cast<float>(spec_.z_loss / static_cast<double>(layer.batch.step_tokens()));
  const View dprobability = layer.load_balance.dprobability.reshape({layer.load_balance.dprobability.dim(1), experts_});
  context.backend.route_backward(spec_.route, s.logits, s.experts, s.routing.weights, dweights, dprobability, z_factor,
                                 dlogits);
  const ConstView in = jittered_input(layer, x);
  logits_.backward_weight(context, dlogits, in);
  logits_.backward_bias(context, dlogits);
  const bool jitter = in.bytes() != x.bytes();
  const View din = jitter ? context.temp(x.shape()) : dx;
  logits_.backward_input(context, dlogits, din, !jitter);
  if (scales_noise(layer)) {
    const View dstddev = context.temp(dlogits.shape());
    context.backend.noisy_gating_backward(with_seed(*spec_.noise, layer.batch),
                                          context.own_tokens(layer.batch.token_numbers), dlogits, s.noise_stddev,
                                          dstddev);
    noise_stddev_->backward_weight(context, dstddev, in);
    noise_stddev_->backward_input(context, dstddev, din, true);
  }
  if (!jitter) return;
  context.backend.jitter(with_seed(*spec_.jitter, layer.batch), context.own_tokens(layer.batch.token_numbers), din,
                         true, dx);
}

}  // namespace sy
