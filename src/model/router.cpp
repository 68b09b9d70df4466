#include "src/model/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sy {

Index expert_capacity(double factor, Index top_k, Index tokens, Index experts) {
  if (factor == 0) return 0;
  const double exact = factor * static_cast<double>(top_k * tokens) / static_cast<double>(experts);
  // A product that is whole but for the rounding of `factor` (1.1 * 20 / 2) is that whole number.
  return std::max<Index>(1, static_cast<Index>(std::ceil(exact * (1 - 1e-12))));
}

Router::Router(const Config& config, const ParamStore& store, const std::string& prefix, View bias)
    : experts_(config.moe.experts),
      capacity_factor_(config.moe.capacity_factor),
      aux_loss_(config.moe.aux_loss),
      z_loss_(config.moe.z_loss),
      capacity_scope_(config.moe.capacity_scope),
      drop_order_(config.moe.drop_order),
      aux_scope_(config.moe.aux_scope),
      logits_(store.get(prefix + "router.weight"), config.model.d_model),
      bias_(bias) {
  const auto& e = config.moe;
  desc_ = {e.score,
           static_cast<int>(e.top_k),
           e.renormalize,
           static_cast<float>(e.scale),
           static_cast<int>(e.groups),
           static_cast<int>(e.group_limit)};
}

void Router::forward(const Context& ctx, ConstView x, Saved& s, RouterStats& stats) const {
  Backend& b = ctx.backend;
  const Index T = ctx.tokens(), E = experts_, k = desc_.top_k;
  // Statistics are kept by segment: the longest runs of tokens that lie within one sequence on every rank.
  const Index G = std::max<Index>(1, T / std::gcd(T, ctx.seq_len));  // one, and empty, where there is no token
  s.logits = ctx.saved.f32({T, E});
  s.experts = ctx.saved.i32({T, k});
  s.dprobability = ctx.saved.f32({G, E});
  Routing& r = s.routing;
  r.weights = ctx.saved.f32({T, k});
  r.slots = ctx.saved.i32({T, k});
  const View rows = ctx.saved.i32({T * k}), tokens = ctx.saved.i32({T * k});

  const Arena::Scope scope(ctx.scratch);
  const View counts = ctx.scratch.i32({G, E}), probability = ctx.scratch.f32({G, E}), kept = ctx.scratch.i32({E});
  const View keep = ctx.scratch.i32({T, k}), z_squared = ctx.scratch.take({1}, DType::f64);
  logits_.forward(ctx, x, s.logits);
  b.route_forward(desc_, s.logits, bias_, s.experts, r.weights, counts, probability, z_squared);
  balance(ctx, counts, probability, s, stats);
  drop(ctx, s.experts, r.weights, keep);
  if (ctx.observer) (*ctx.observer)({s.logits, s.experts, r.weights, keep});
  b.sort_assignments(s.experts, keep, rows, tokens, r.slots, kept);

  // The host learns the counts here: the all-to-all and the grouped products need them.
  r.counts.resize(E);
  b.to_host(kept, r.counts.data());
  const Index R = std::accumulate(r.counts.begin(), r.counts.end(), Index{0});
  r.rows = rows.rows(0, R);
  r.tokens = tokens.rows(0, R);

  double z = 0;
  b.to_host(z_squared, &z);
  stats.z_loss += z_loss_ * z / static_cast<double>(ctx.global_tokens);
  std::vector<std::int32_t> routed(G * E);
  std::vector<float> p(G * E);
  b.to_host(counts, routed.data());
  b.to_host(probability, p.data());
  for (Index i = 0; i < G * E; ++i) {
    stats.routed[i % E] += routed[i];
    stats.dropped[i % E] += routed[i];
    stats.probability[i % E] += p[i];
  }
  for (Index e = 0; e < E; ++e) stats.dropped[e] -= r.counts[e];
  if (ctx.mesh.layout.etp > 1) split_experts(ctx, r);
}

void Router::split_experts(const Context& ctx, Routing& r) const {
  const Index etp = ctx.mesh.layout.etp, ep = ctx.mesh.layout.ep, local = experts_ / ep, T = ctx.tokens(),
              k = desc_.top_k;
  const Index R = r.rows.elements();
  std::vector<std::int32_t> rows(R), tokens(R), new_rows, new_tokens, counts, slots(T * k * etp, -1);
  ctx.backend.to_host(r.rows, rows.data());
  ctx.backend.to_host(r.tokens, tokens.data());
  Index first = 0;  // row of the first of an ep coordinate's experts
  for (Index p = 0; p < ep; ++p) {
    const auto* of_p = r.counts.data() + p * local;
    const Index n = std::accumulate(of_p, of_p + local, Index{0});
    for (Index part = 0; part < etp; ++part) {
      counts.insert(counts.end(), of_p, of_p + local);
      for (Index i = first; i < first + n; ++i) {
        slots[rows[i] * etp + part] = static_cast<std::int32_t>(new_rows.size());
        new_rows.push_back(rows[i]);
        new_tokens.push_back(tokens[i]);
      }
    }
    first += n;
  }
  const auto upload = [&](const std::vector<std::int32_t>& v, Shape shape) {
    const View x = ctx.saved.i32(shape);
    ctx.backend.to_device(v.data(), x);
    return x;
  };
  r.rows = upload(new_rows, {R * etp});
  r.tokens = upload(new_tokens, {R * etp});
  r.slots = upload(slots, {T, k * etp});
  r.counts = counts;
}

void Router::drop(const Context& ctx, ConstView experts, ConstView weights, View keep) const {
  const bool by_rank = capacity_scope_ == CapacityScope::rank;
  const Index scope_tokens = by_rank ? ctx.tokens() : ctx.seq_len;
  const Index capacity = ctx.dropless ? 0 : expert_capacity(capacity_factor_, desc_.top_k, scope_tokens, experts_);
  const CapacityDesc desc{drop_order_, capacity};
  const bool one_scope = by_rank || capacity == 0;
  if (one_scope || ctx.tokens() % ctx.seq_len == 0)
    return ctx.backend.capacity(desc, experts, weights, one_scope ? 1 : std::max<Index>(1, ctx.tokens() / ctx.seq_len),
                                experts_, keep);
  // A sequence that is spread over tensor-parallel ranks: each of them decides for all of it, and takes its part.
  const Arena::Scope scope(ctx.scratch);
  const ConstView all_experts = gather_tokens(ctx, ctx.scratch, experts);
  const ConstView all_weights = gather_tokens(ctx, ctx.scratch, weights);
  const View all_keep = ctx.scratch.i32(all_experts.shape());
  ctx.backend.capacity(desc, all_experts, all_weights, ctx.sequences, experts_, all_keep);
  ctx.backend.copy(ctx.own_tokens(all_keep), keep);
}

// aux_loss * (E / k) * sum_i f_i P_i over each scope of N tokens, averaged over the scopes: f_i the share of assignments
// (times k) and P_i the mean probability of expert i. f has no gradient, so this is a linear function of the
// segments' sums of probabilities, with one factor for each segment and expert.
void Router::balance(const Context& ctx, View counts, ConstView probability, Saved& s, RouterStats& stats) const {
  const Index G = counts.dim(0), E = experts_, B = ctx.sequences, tp = ctx.mesh.layout.tp;
  std::vector<std::int32_t> mine(G * E);
  ctx.backend.to_host(counts, mine.data());
  std::vector<Index> scope_counts(G * E);  // assignments to the expert within the segment's scope
  double scope_tokens = 0, scopes = 0;     // N; how many scopes a step averages over
  const double ranks = ctx.mesh.layout.ranks;
  switch (aux_scope_) {
    case AuxScope::sequence: {
      const Index per_sequence = B > 0 ? tp * G / B : 1;  // segments of one sequence
      std::vector<std::int32_t> all = mine;
      if (per_sequence > 1) {  // they may lie on other ranks
        all.resize(tp * G * E);
        ctx.mesh.tp->all_gather(view_of(mine.data(), {G * E}), view_of(all.data(), {tp * G * E}));
      }
      for (Index g = 0; g < G; ++g) {
        const Index first = per_sequence > 1 ? (ctx.mesh.coord.tp * G + g) / per_sequence * per_sequence : g;
        for (Index i = first; i < first + per_sequence; ++i)
          for (Index e = 0; e < E; ++e) scope_counts[g * E + e] += all[i * E + e];
      }
      scope_tokens = static_cast<double>(ctx.seq_len);
      scopes = static_cast<double>(ctx.global_sequences);
      break;
    }
    case AuxScope::micro_batch:
    case AuxScope::global_batch: {
      std::vector<Index> total(E);
      for (Index i = 0; i < G * E; ++i) total[i % E] += mine[i];
      const bool global = aux_scope_ == AuxScope::global_batch;
      if (global) ctx.mesh.world->all_reduce(view_of(total.data(), {E}));
      for (Index i = 0; i < G * E; ++i) scope_counts[i] = total[i % E];
      scope_tokens = static_cast<double>(ctx.tokens()) * (global ? ranks : 1);
      scopes = static_cast<double>(ctx.micro_batches) * (global ? 1 : ranks);
      break;
    }
  }
  const double factor = aux_loss_ * static_cast<double>(E) / desc_.top_k / (scope_tokens * scope_tokens * scopes);
  std::vector<float> p(G * E), gradient(G * E);
  ctx.backend.to_host(probability, p.data());
  for (Index i = 0; i < G * E; ++i) {
    gradient[i] = static_cast<float>(factor * static_cast<double>(scope_counts[i]));
    stats.aux_loss += factor * static_cast<double>(scope_counts[i]) * p[i];
  }
  ctx.backend.to_device(gradient.data(), s.dprobability);
}

void Router::backward(const Context& ctx, ConstView dweights, ConstView x, const Saved& s, View dx) const {
  const Arena::Scope scope(ctx.scratch);
  const View dlogits = ctx.scratch.f32(s.logits.shape());
  const float z_factor = static_cast<float>(z_loss_ / static_cast<double>(ctx.global_tokens));
  ctx.backend.route_backward(desc_, s.logits, s.experts, s.routing.weights, dweights, s.dprobability, z_factor,
                             dlogits);
  logits_.backward_weight(ctx, dlogits, x);
  logits_.backward_input(ctx, dlogits, dx, true);
}

}  // namespace sy
