#include "src/model/balance.h"

#include <algorithm>
#include <numeric>

#include "dist/activity.h"

namespace sy {
namespace {

// Returns the scopes of the loss and the first of this rank's segments.
// - counts: [L, G, E] i32 of this rank's segments
// - scope_counts: becomes [P, L, G, E], the counts of the P ranks that share scopes; `counts`
//   itself if P = 1, otherwise scratch memory
BalanceDesc balance_scope(const Pass& pass, const RouterSpec& spec, View counts, View& scope_counts) {
  const Device& device = pass.device;
  const Batch& batch = pass.batch;
  const Index L = counts.dim(0), G = counts.dim(1), E = counts.dim(2), B = batch.sequences;
  const Index tp = device.mesh.layout.tp, ranks = device.mesh.stage->size();
  BalanceDesc desc;
  scope_counts = counts.reshape({1, L, G, E});
  desc.per_scope = G;
  if (batch.evaluation) return desc;
  // Gathers the counts of all ranks of `group`, whose segments form the scopes.
  const auto gather = [&](Comm& group) {
    const Doing doing("load-balance loss");
    scope_counts = device.scratch.i32({group.size(), L, G, E});
    group.all_gather(counts, scope_counts);
    desc.first = group.rank() * G;
  };
  double tokens = 0, scopes = 0;  // N; the number of scopes in a step
  switch (spec.aux_scope) {
    case AuxScope::sequence:
      SY_ASSERT(!spec.balanced_together, "a load-balance loss of {} layers by sequence", L);
      desc.per_scope = B > 0 ? tp * G / B : 1;
      if (desc.per_scope > 1) gather(*device.mesh.tp);  // a sequence has segments on other ranks
      tokens = static_cast<double>(batch.seq_len);
      scopes = static_cast<double>(batch.step.sequences);
      break;
    case AuxScope::micro_batch:
      tokens = static_cast<double>(pass.own_tokens());
      scopes = static_cast<double>(batch.step.micro_batches * ranks);
      break;
    case AuxScope::global_batch:
      gather(*device.mesh.stage);
      desc.per_scope = ranks * G;
      tokens = static_cast<double>(pass.own_tokens() * ranks);
      scopes = static_cast<double>(batch.step.micro_batches);
      break;
  }
  desc.together = spec.balanced_together;
  tokens = std::max(tokens, 1.0) * static_cast<double>(desc.together ? L : 1);
  desc.factor = spec.aux_loss * static_cast<double>(E) / spec.route.top_k / (tokens * tokens * scopes);
  return desc;
}

}  // namespace

Index balance_segments(const Pass& pass) {
  const Index T = pass.own_tokens();
  return std::max<Index>(1, T / std::gcd(T, pass.batch.seq_len));
}

Balance make_balance(const Pass& pass, Index layers, Index experts) {
  const Shape all{layers, balance_segments(pass), experts};
  return {.counts = pass.saved.i32(all),
          .probability = pass.saved.f32(all),
          .kept = pass.saved.i32({layers, experts}),
          .z_squared = pass.saved.take({layers}, DType::f64),
          .dprobability = pass.saved.f32(all)};
}

void balance(const Pass& pass, const RouterSpec& spec, const Balance& layers, View sums) {
  const Device& device = pass.device;
  const Arena::Scope scope(device.scratch);
  View scope_counts;
  BalanceDesc desc = balance_scope(pass, spec, layers.counts, scope_counts);
  desc.z_factor = spec.z_loss / static_cast<double>(pass.batch.step_tokens());
  device.backend.balance(desc, layers.counts, scope_counts, layers.probability, layers.kept, layers.z_squared,
                         layers.dprobability, sums);
}

}  // namespace sy
