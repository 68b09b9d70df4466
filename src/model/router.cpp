#include "src/model/router.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops/capacity.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/random.h"
#include "kernels/ops/route.h"

namespace sy {

Index expert_capacity(double factor, Index top_k, Index tokens, Index experts) {
  if (factor == 0) return 0;
  const double exact = factor * static_cast<double>(top_k * tokens) / static_cast<double>(experts);
  // If the exact product is an integer (1.1 * 20 / 2), the rounding of `factor` must not add 1.
  return std::max<Index>(1, static_cast<Index>(std::ceil(exact * (1 - 1e-12))));
}

Router::Router(const MoeSpec& spec, const SublayerContext& context, const std::string& prefix)
    : spec_(spec.router),
      experts_(spec.experts),
      logits_(context.store, prefix + "router"),
      index_(context.counts.routers++),
      tables_(context.routers.of(index_)) {
  if (spec_.learned_noise_stddev) noise_stddev_.emplace(context.store, prefix + "router.noise");
  if (spec_.noise) spec_.noise->stream = hash_name(prefix + "router.noise");
  if (spec_.jitter) spec_.jitter->stream = hash_name(prefix + "router.jitter");
}

RandomDesc Router::with_seed(RandomDesc desc, const Batch& batch) {
  desc.seed = batch.seed;
  return desc;
}

ConstView Router::jittered_input(const LayerContext& layer, ConstView x) const {
  if (!spec_.jitter || !layer.stream.token_numbers) return x;
  const ExecutionContext& context = layer.context;
  const ConstView index = context.own_tokens(layer.stream.token_numbers);
  const View y = context.temp(x.shape());
  run(context.device, ops::Jitter{.x = x, .index = index, .desc = with_seed(*spec_.jitter, layer.batch), .y = y});
  return y;
}

void Router::forward(const LayerContext& layer, ConstView x, Saved& s) const {
  const ExecutionContext& context = layer.context;
  const Batch& batch = layer.batch;
  const TokenStream& stream = layer.stream;
  Device& b = context.device;
  const Index T = layer.own_tokens(), E = experts_, k = spec_.route.top_k;
  const ExpertPlacement placement = this->placement(context);
  s.logits = layer.saved.f32({T, E});
  const RoutingDecisions recorded = layer.decisions.of(index_);
  s.experts = recorded.experts ? recorded.experts : layer.saved.i32({T, k});
  s.weights = layer.saved.f32({T, k});
  const LoadBalanceState load_balance = layer.load_balance.of(index_);
  s.dispatch_layout =
      DispatchLayout(placement, T, k, load_balance.tokens_per_expert.reshape({E}), layer.saved, context.scratch);

  const Arena::Scope scope(context.scratch);
  const Shape of_segments{load_balance.counts.dim(1), E};
  // If the capacity is unlimited, only a record or the hook needs the mask.
  const bool masked = recorded.dispatch_mask || layer.routing_hook || capacity(layer) > 0;
  const View dispatch_mask = recorded.dispatch_mask ? recorded.dispatch_mask
                             : masked               ? context.scratch.i32({T, k})
                                                    : View();
  const ConstView in = jittered_input(layer, x);
  logits_.forward(context, in, s.logits);
  View noise;
  if (scales_noise(layer)) {
    s.noise_stddev = layer.saved.f32({T, E});
    noise_stddev_->forward(context, in, s.noise_stddev);
    run(b, ops::NoisyGatingForward{.stddev = s.noise_stddev,
                                   .index = context.own_tokens(stream.token_numbers),
                                   .desc = with_seed(*spec_.noise, batch),
                                   .x = s.logits});
  } else if (spec_.noise && stream.token_numbers && !recorded.replay) {
    noise = context.scratch.f32({T, E});
    run(b, ops::Draw{
               .index = context.own_tokens(stream.token_numbers), .desc = with_seed(*spec_.noise, batch), .x = noise});
  }
  run(b, ops::RouteForward{.logits = s.logits,
                           .bias = tables_.bias,
                           .noise = noise,
                           .token_mask = stream.token_mask ? context.own_tokens(stream.token_mask) : ConstView{},
                           .desc = spec_.route,
                           .replay = recorded.replay,
                           .experts = s.experts,
                           .weights = s.weights,
                           .counts = load_balance.counts.reshape(of_segments),
                           .probability = load_balance.probability.reshape(of_segments),
                           .z_squared = load_balance.z_squared});
  if (masked && !recorded.replay) apply_capacity(layer, s.experts, s.weights, dispatch_mask);
  if (layer.routing_hook) (*layer.routing_hook)({s.logits, s.experts, s.weights, dispatch_mask});
  s.dispatch_layout.build(b, placement, s.experts, dispatch_mask, context.scratch);
}

Index Router::capacity(const LayerContext& layer) const {
  if (layer.batch.dropless) return 0;
  const bool by_rank = spec_.capacity_scope == CapacityScope::rank;
  const Index scope_tokens = by_rank ? layer.own_tokens() : layer.stream.seq_len;
  return expert_capacity(spec_.capacity_factor, spec_.route.top_k, scope_tokens, experts_);
}

void Router::apply_capacity(const LayerContext& layer, ConstView experts, ConstView weights, View dispatch_mask) const {
  const ExecutionContext& context = layer.context;
  const Index seq_len = layer.stream.seq_len;
  const bool by_rank = spec_.capacity_scope == CapacityScope::rank;
  const CapacityDesc desc{spec_.drop_order, capacity(layer)};
  const bool one_scope = by_rank || desc.capacity == 0, split = !one_scope && layer.own_tokens() % seq_len != 0;
  // A sequence that is split over tensor-parallel ranks: each of them decides for all of it, and
  // uses the result of its own tokens.
  const Arena::Scope scope(context.scratch);
  const ConstView all_experts = split ? gather_tokens(context, context.scratch, experts) : experts;
  const ConstView all_weights = split ? gather_tokens(context, context.scratch, weights) : weights;
  const View all_masks = split ? context.scratch.i32(all_experts.shape()) : dispatch_mask;
  run(context.device, ops::ApplyCapacity{.experts = all_experts,
                                         .weights = all_weights,
                                         .segments = split       ? layer.stream.sequences
                                                     : one_scope ? 1
                                                                 : std::max<Index>(1, layer.own_tokens() / seq_len),
                                         .num_experts = experts_,
                                         .desc = desc,
                                         .dispatch_mask = all_masks});
  if (split) run(context.device, ops::Copy{.x = context.own_tokens(all_masks), .y = dispatch_mask});
}

void Router::backward(const LayerContext& layer, ConstView dweights, ConstView x, const Saved& s, View dx) {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  const View dlogits = context.temp(s.logits.shape());
  const float z_factor = static_cast<float>(spec_.z_loss / static_cast<double>(layer.step_tokens()));
  const View dprobability = layer.load_balance.of(index_).dprobability;
  run(context.device, ops::RouteBackward{.logits = s.logits,
                                         .experts = s.experts,
                                         .weights = s.weights,
                                         .dweights = dweights,
                                         .dprobability = dprobability.reshape({dprobability.dim(1), experts_}),
                                         .desc = spec_.route,
                                         .z_factor = z_factor,
                                         .dlogits = dlogits});
  const ConstView in = jittered_input(layer, x);
  logits_.backward_params(context, dlogits, in);
  const bool jitter = in.bytes() != x.bytes();
  const View din = jitter ? context.temp(x.shape()) : dx;
  logits_.backward_input(context, dlogits, din, !jitter);
  if (scales_noise(layer)) {
    const View dstddev = context.temp(dlogits.shape());
    run(context.device, ops::NoisyGatingBackward{.dx = dlogits,
                                                 .stddev = s.noise_stddev,
                                                 .index = context.own_tokens(layer.stream.token_numbers),
                                                 .desc = with_seed(*spec_.noise, layer.batch),
                                                 .dstddev = dstddev});
    noise_stddev_->backward_weight(context, dstddev, in);
    noise_stddev_->backward_input(context, dstddev, din, true);
  }
  if (!jitter) return;
  run(context.device, ops::Jitter{.x = din,
                                  .index = context.own_tokens(layer.stream.token_numbers),
                                  .desc = with_seed(*spec_.jitter, layer.batch),
                                  .accumulate = true,
                                  .y = dx});
}

}  // namespace sy
