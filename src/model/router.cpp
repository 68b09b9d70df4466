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
  if (spec_.learned_noise) noise_size_.emplace(store, store.get(prefix + "router.noise.weight"), d_model);
  if (spec_.noise) spec_.noise->stream = hash_name(prefix + "router.noise");
  if (spec_.jitter) spec_.jitter->stream = hash_name(prefix + "router.jitter");
}

Draw Router::keyed(Draw draw, const Batch& batch) {
  draw.seed = batch.seed;
  return draw;
}

ConstView Router::input(const Pass& pass, ConstView x) const {
  if (!spec_.jitter || !pass.batch.token_numbers) return x;
  const Device& device = pass.device;
  const View y = device.temp(x.shape());
  device.backend.jitter(keyed(*spec_.jitter, pass.batch), device.own_tokens(pass.batch.token_numbers), x, false, y);
  return y;
}

void Router::forward(const Pass& pass, ConstView x, Saved& s, const RoutingObserver* observer) const {
  const Device& device = pass.device;
  const Batch& batch = pass.batch;
  Backend& b = device.backend;
  const Index T = pass.own_tokens(), E = experts_, k = spec_.route.top_k;
  const ExpertRanks ranks = this->ranks(device);
  s.logits = pass.saved.f32({T, E});
  s.experts = pass.saved.i32({T, k});
  Routing& r = s.routing;
  r.weights = pass.saved.f32({T, k});
  r.sends = Sends(ranks, T, k, E, pass.saved, device.scratch);

  const Arena::Scope scope(device.scratch);
  const Balance& balance = pass.balance;
  const Shape of_segments{balance.counts.dim(1), E};
  const View keep = device.scratch.i32({T, k});
  const ConstView in = input(pass, x);
  logits_.forward(device, in, s.logits);
  View noise;
  if (sizes_noise(pass)) {
    s.noise_size = pass.saved.f32({T, E});
    noise_size_->forward(device, in, s.noise_size);
    b.sized_noise_forward(keyed(*spec_.noise, batch), device.own_tokens(batch.token_numbers), s.noise_size, s.logits);
  } else if (spec_.noise && batch.token_numbers) {
    noise = device.scratch.f32({T, E});
    b.draw(keyed(*spec_.noise, batch), device.own_tokens(batch.token_numbers), noise);
  }
  b.route_forward(spec_.route, s.logits, tables_.bias, noise, s.experts, r.weights, balance.counts.reshape(of_segments),
                  balance.probability.reshape(of_segments), balance.z_squared);
  drop(pass, s.experts, r.weights, keep);
  const Index real = std::clamp<Index>(batch.tokens() - batch.padding - device.mesh.coord.tp * T, 0, T);
  if (real < T) b.fill(keep.rows(real, T - real), 0);
  if (observer) (*observer)({s.logits, s.experts, r.weights, keep});
  r.sends.plan(b, ranks, s.experts, keep, balance.kept.reshape({E}), device.scratch);
}

void Router::drop(const Pass& pass, ConstView experts, ConstView weights, View keep) const {
  const Device& device = pass.device;
  const Batch& batch = pass.batch;
  const bool by_rank = spec_.capacity_scope == CapacityScope::rank;
  const Index scope_tokens = by_rank ? pass.own_tokens() : batch.seq_len;
  const Index capacity =
      batch.dropless ? 0 : expert_capacity(spec_.capacity_factor, spec_.route.top_k, scope_tokens, experts_);
  const CapacityDesc desc{spec_.drop_order, capacity};
  const bool one_scope = by_rank || capacity == 0;
  if (one_scope || pass.own_tokens() % batch.seq_len == 0)
    return device.backend.capacity(
        desc, experts, weights, one_scope ? 1 : std::max<Index>(1, pass.own_tokens() / batch.seq_len), experts_, keep);
  // The sequence is split over tensor-parallel ranks. Each of them decides for all of it, and uses
  // the result of its own tokens.
  const Arena::Scope scope(device.scratch);
  const ConstView all_experts = gather_tokens(device, device.scratch, experts);
  const ConstView all_weights = gather_tokens(device, device.scratch, weights);
  const View all_keep = device.scratch.i32(all_experts.shape());
  device.backend.capacity(desc, all_experts, all_weights, batch.sequences, experts_, all_keep);
  device.backend.copy(device.own_tokens(all_keep), keep);
}

void Router::backward(const Pass& pass, ConstView dweights, ConstView x, const Saved& s, View dx) const {
  const Device& device = pass.device;
  const Arena::Scope scope(device.scratch);
  const View dlogits = device.temp(s.logits.shape());
  const float z_factor = static_cast<float>(spec_.z_loss / static_cast<double>(pass.batch.step_tokens()));
  const View dprobability = pass.balance.dprobability.reshape({pass.balance.dprobability.dim(1), experts_});
  device.backend.route_backward(spec_.route, s.logits, s.experts, s.routing.weights, dweights, dprobability, z_factor,
                                dlogits);
  const ConstView in = input(pass, x);
  logits_.backward_weight(device, dlogits, in);
  logits_.backward_bias(device, dlogits);
  const bool jitter = in.bytes() != x.bytes();
  const View din = jitter ? device.temp(x.shape()) : dx;
  logits_.backward_input(device, dlogits, din, !jitter);
  if (sizes_noise(pass)) {
    const View dsize = device.temp(dlogits.shape());
    device.backend.sized_noise_backward(keyed(*spec_.noise, pass.batch), device.own_tokens(pass.batch.token_numbers),
                                        dlogits, s.noise_size, dsize);
    noise_size_->backward_weight(device, dsize, in);
    noise_size_->backward_input(device, dsize, din, true);
  }
  if (!jitter) return;
  device.backend.jitter(keyed(*spec_.jitter, pass.batch), device.own_tokens(pass.batch.token_numbers), din, true, dx);
}

}  // namespace sy
