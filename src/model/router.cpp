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

Router::Router(const MoeSpec& spec, Index d_model, const ParamStore& store, const std::string& prefix, View bias)
    : spec_(spec.router), experts_(spec.experts), logits_(store.get(prefix + "router.weight"), d_model), bias_(bias) {}

void Router::forward(const Context& ctx, ConstView x, Saved& s, View stats) const {
  Backend& b = ctx.backend;
  const Index T = ctx.tokens(), E = experts_, k = spec_.route.top_k;
  const ExpertSplit split{ctx.mesh.layout.ep, ctx.mesh.layout.etp};
  // Statistics are kept by segment: the longest runs of tokens that lie within one sequence on every rank.
  const Index G = std::max<Index>(1, T / std::gcd(T, ctx.seq_len));  // one, and empty, where there is no token
  s.logits = ctx.saved.f32({T, E});
  s.experts = ctx.saved.i32({T, k});
  s.dprobability = ctx.saved.f32({G, E});
  Routing& r = s.routing;
  r.weights = ctx.saved.f32({T, k});
  r.slots = ctx.saved.i32({T, k * split.parts});
  r.rows = ctx.saved.i32({T * k * split.parts});
  r.tokens = ctx.saved.i32({T * k * split.parts});
  r.counts = ctx.saved.i32({E * split.parts});

  const Arena::Scope scope(ctx.scratch);
  const View counts = ctx.scratch.i32({G, E}), probability = ctx.scratch.f32({G, E});
  const View keep = ctx.scratch.i32({T, k}), z_squared = ctx.scratch.take({1}, DType::f64);
  logits_.forward(ctx, x, s.logits);
  b.route_forward(spec_.route, s.logits, bias_, s.experts, r.weights, counts, probability, z_squared);
  drop(ctx, s.experts, r.weights, keep);
  if (ctx.observer) (*ctx.observer)({s.logits, s.experts, r.weights, keep});
  b.sort_assignments(split, s.experts, keep, r.rows, r.tokens, r.slots, r.counts);
  View scope_counts;
  BalanceDesc balance = balance_scope(ctx, counts, scope_counts);
  balance.z_factor = spec_.z_loss / static_cast<double>(ctx.global_tokens);
  balance.split = split;
  b.balance(balance, counts, scope_counts, probability, r.counts, z_squared, s.dprobability, stats);
}

void Router::drop(const Context& ctx, ConstView experts, ConstView weights, View keep) const {
  const bool by_rank = spec_.capacity_scope == CapacityScope::rank;
  const Index scope_tokens = by_rank ? ctx.tokens() : ctx.seq_len;
  const Index capacity =
      ctx.dropless ? 0 : expert_capacity(spec_.capacity_factor, spec_.route.top_k, scope_tokens, experts_);
  const CapacityDesc desc{spec_.drop_order, capacity};
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
BalanceDesc Router::balance_scope(const Context& ctx, View counts, View& scope_counts) const {
  const Index G = counts.dim(0), E = experts_, B = ctx.sequences, tp = ctx.mesh.layout.tp;
  const Index ranks = ctx.mesh.layout.ranks;
  BalanceDesc desc;
  scope_counts = counts;
  double tokens = 0, scopes = 0;  // N; how many scopes a step averages over
  switch (spec_.aux_scope) {
    case AuxScope::sequence:
      desc.per_scope = B > 0 ? tp * G / B : 1;
      if (desc.per_scope > 1) {  // a sequence's segments may lie on other ranks
        scope_counts = ctx.scratch.i32({tp * G, E});
        ctx.mesh.tp->all_gather(counts, scope_counts);
        desc.first = ctx.mesh.coord.tp * G;
      }
      tokens = static_cast<double>(ctx.seq_len);
      scopes = static_cast<double>(ctx.global_sequences);
      break;
    case AuxScope::micro_batch:
      desc.per_scope = G;
      tokens = static_cast<double>(ctx.tokens());
      scopes = static_cast<double>(ctx.micro_batches * ranks);
      break;
    case AuxScope::global_batch:
      scope_counts = ctx.scratch.i32({ranks * G, E});
      ctx.mesh.all->all_gather(counts, scope_counts);
      desc.per_scope = ranks * G;
      tokens = static_cast<double>(ctx.tokens() * ranks);
      scopes = static_cast<double>(ctx.micro_batches);
      break;
  }
  tokens = std::max(tokens, 1.0);
  desc.factor = spec_.aux_loss * static_cast<double>(E) / spec_.route.top_k / (tokens * tokens * scopes);
  return desc;
}

void Router::backward(const Context& ctx, ConstView dweights, ConstView x, const Saved& s, View dx) const {
  const Arena::Scope scope(ctx.scratch);
  const View dlogits = ctx.temp(s.logits.shape());
  const float z_factor = static_cast<float>(spec_.z_loss / static_cast<double>(ctx.global_tokens));
  ctx.backend.route_backward(spec_.route, s.logits, s.experts, s.routing.weights, dweights, s.dprobability, z_factor,
                             dlogits);
  logits_.backward_weight(ctx, dlogits, x);
  logits_.backward_input(ctx, dlogits, dx, true);
}

}  // namespace sy
