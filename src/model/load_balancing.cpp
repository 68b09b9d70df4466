#include "src/model/load_balancing.h"

#include <algorithm>
#include <numeric>

#include "dist/phase.h"
#include "kernels/ops/load_balancing.h"

namespace sy {
namespace {

// Returns the scopes of the loss and the first of this rank's segments.
// - counts: [L, G, E] i32 of this rank's segments
// - scope_counts: becomes [P, L, G, E], the counts of the P ranks that share scopes; `counts`
//   itself if P = 1, otherwise scratch memory
LoadBalancingDesc load_balancing_scopes(const LayerContext& layer, const RouterSpec& spec, View counts,
                                        View& scope_counts) {
  const ExecutionContext& context = layer.context;
  const Batch& batch = layer.batch;
  const Index L = counts.dim(0), G = counts.dim(1), E = counts.dim(2), B = layer.stream.sequences;
  const Index tp = context.mesh.layout.tp, ranks = context.mesh.stage->size();
  LoadBalancingDesc desc;
  scope_counts = counts.reshape({1, L, G, E});
  desc.per_scope = G;
  if (batch.evaluation) return desc;
  // Gathers the counts of all ranks of `group`, whose segments form the scopes.
  const auto gather = [&](Comm& group) {
    const ScopedPhase phase(context.mesh.rank_context(), "load-balance loss");
    scope_counts = context.scratch.i32({group.size(), L, G, E});
    group.all_gather(counts, scope_counts);
    desc.first = group.rank() * G;
  };
  double tokens = 0, scopes = 0;  // N; the number of scopes in a step
  switch (spec.aux_scope) {
    case AuxScope::sequence:
      SY_ASSERT(!spec.joint_balancing, "a load-balance loss of {} layers by sequence", L);
      desc.per_scope = B > 0 ? tp * G / B : 1;
      if (desc.per_scope > 1) gather(*context.mesh.tp);  // a sequence has segments on other ranks
      tokens = static_cast<double>(layer.stream.seq_len);
      scopes = static_cast<double>(batch.step.sequences);
      break;
    case AuxScope::micro_batch:
      tokens = static_cast<double>(layer.own_tokens());
      scopes = static_cast<double>(batch.step.micro_batches * ranks);
      break;
    case AuxScope::global_batch:
      gather(*context.mesh.stage);
      desc.per_scope = ranks * G;
      tokens = static_cast<double>(layer.own_tokens() * ranks);
      scopes = static_cast<double>(batch.step.micro_batches);
      break;
  }
  desc.together = spec.joint_balancing;
  tokens = std::max(tokens, 1.0) * static_cast<double>(desc.together ? L : 1);
  desc.factor = spec.aux_loss * static_cast<double>(E) / spec.route.top_k / (tokens * tokens * scopes);
  return desc;
}

}  // namespace

Index load_balancing_segments(const LayerContext& layer) {
  const Index T = layer.own_tokens();
  return std::max<Index>(1, T / std::gcd(T, layer.stream.seq_len));
}

LoadBalanceState make_load_balance_state(const LayerContext& layer, Index layers, Index experts) {
  const Shape all{layers, load_balancing_segments(layer), experts};
  return {.counts = layer.saved.i32(all),
          .probability = layer.saved.f32(all),
          .tokens_per_expert = layer.saved.i32({layers, experts}),
          .z_squared = layer.saved.take({layers}, DType::f64),
          .dprobability = layer.saved.f32(all)};
}

void load_balancing_loss(const LayerContext& layer, const RouterSpec& spec, const LoadBalanceState& layers, View sums) {
  const ExecutionContext& context = layer.context;
  const Arena::Scope scope(context.scratch);
  View scope_counts;
  LoadBalancingDesc desc = load_balancing_scopes(layer, spec, layers.counts, scope_counts);
  desc.z_factor = spec.z_loss / static_cast<double>(layer.step_tokens());
  run(context.device, ops::LoadBalancingLoss{.counts = layers.counts,
                                             .scope_counts = scope_counts,
                                             .probability = layers.probability,
                                             .tokens_per_expert = layers.tokens_per_expert,
                                             .z_squared = layers.z_squared,
                                             .desc = desc,
                                             .dprobability = layers.dprobability,
                                             .sums = sums});
}

}  // namespace sy
