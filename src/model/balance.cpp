#include "src/model/balance.h"

#include <algorithm>
#include <numeric>

namespace sy {
namespace {

// What is balanced over which segments, and their counts [N, E], which may be other ranks' too and are taken from scratch.
// counts: [L * G, E] i32 of this rank's segments.
BalanceDesc balance_scope(const Pass& pass, const RouterSpec& spec, Index layers, View counts, View& scope_counts) {
  const Device& device = pass.device;
  const Batch& batch = pass.batch;
  const Index G = counts.dim(0), E = counts.dim(1), B = batch.sequences, tp = device.mesh.layout.tp;
  const Index ranks = device.mesh.stage->size();
  BalanceDesc desc;
  scope_counts = counts;
  desc.per_scope = G;
  if (batch.evaluation) return desc;
  double tokens = 0, scopes = 0;  // N; how many scopes a step averages over
  switch (spec.aux_scope) {
    case AuxScope::sequence:
      SY_ASSERT(layers == 1, "a load-balance loss of {} layers by sequence", layers);
      desc.per_scope = B > 0 ? tp * G / B : 1;
      if (desc.per_scope > 1) {  // a sequence's segments may lie on other ranks
        scope_counts = device.scratch.i32({tp * G, E});
        device.mesh.tp->all_gather(counts, scope_counts);
        desc.first = device.mesh.coord.tp * G;
      }
      tokens = static_cast<double>(batch.seq_len);
      scopes = static_cast<double>(batch.step.sequences);
      break;
    case AuxScope::micro_batch:
      tokens = static_cast<double>(pass.own_tokens());
      scopes = static_cast<double>(batch.step.micro_batches * ranks);
      break;
    case AuxScope::global_batch:
      scope_counts = device.scratch.i32({ranks * G, E});
      device.mesh.stage->all_gather(counts, scope_counts);
      desc.per_scope = ranks * G;
      tokens = static_cast<double>(pass.own_tokens() * ranks);
      scopes = static_cast<double>(batch.step.micro_batches);
      break;
  }
  tokens = std::max(tokens, 1.0) * static_cast<double>(layers);
  desc.factor = spec.aux_loss * static_cast<double>(E) / spec.route.top_k / (tokens * tokens * scopes);
  return desc;
}

}  // namespace

Index balance_segments(const Pass& pass) {
  const Index T = pass.own_tokens();
  return std::max<Index>(1, T / std::gcd(T, pass.batch.seq_len));
}

Balance make_balance(View dprobability, Arena& within) {
  const Index L = dprobability.dim(0), E = dprobability.dim(2);
  return {.counts = within.i32(dprobability.shape()),
          .probability = within.f32(dprobability.shape()),
          .kept = within.i32({L, E}),
          .z_squared = within.take({L, 1}, DType::f64),
          .dprobability = dprobability};
}

void balance(const Pass& pass, const RouterSpec& spec, const Balance& layers, View sums) {
  const Device& device = pass.device;
  const Arena::Scope scope(device.scratch);
  const Index L = layers.layers(), G = layers.counts.dim(1), E = layers.counts.dim(2);
  View scope_counts;
  BalanceDesc desc = balance_scope(pass, spec, L, layers.counts.reshape({L * G, E}), scope_counts);
  desc.z_factor = spec.z_loss / static_cast<double>(pass.batch.step_tokens());
  for (Index l = 0; l < L; ++l) {
    const auto of = [&](View all) { return all.rows(l * G, G); };
    device.backend.balance(
        desc, of(layers.counts.reshape({L * G, E})), scope_counts, of(layers.probability.reshape({L * G, E})),
        layers.kept.rows(l, 1).reshape({layers.kept.dim(1)}), layers.z_squared.rows(l, 1).reshape({1}),
        of(layers.dprobability.reshape({L * G, E})), sums ? sums.rows(l, 1).reshape({sums.dim(1)}) : View{});
  }
}

}  // namespace sy
