// Load-balancing loss of the routers (Fedus et al., "Switch transformers", 2022):
//
//   aux_loss * (E / k) * sum_i f_i P_i over each scope of N tokens, averaged over the scopes
//
// f_i is the number of assignments to expert i divided by N, and P_i its mean probability.
//
// f has no gradient. The loss is therefore linear in the sums of probabilities of the segments,
// with one factor for each segment and expert. Each layer has its own loss, or all layers share
// one. In a shared loss f_i and P_i are means over the layers (load_balancing_loss_func of
// transformers). Both kinds are computed after the last layer has routed, because only backward
// reads them. One all-gather then sends the counts of all layers.
#pragma once

#include "src/model/context.h"
#include "src/params/block_specs.h"

namespace sy {

// Returns G, the number of this rank's segments. Segments are the longest sequences of tokens that,
// on every rank, lie within one sequence. If the rank has no token, it has one empty segment.
Index load_balancing_segments(const LayerContext& layer);

// Allocates the state of L layers with E experts each, from layer.saved.
LoadBalanceState make_load_balance_state(const LayerContext& layer, Index layers, Index experts);

// Computes dprobability of all these layers, whose routers have the same spec.
// sums: [L, RouterSums of E] f64, to which ops::LoadBalancingLoss adds; or empty. Collective
// if a scope extends over several ranks. In an evaluation pass the load-balancing loss is 0.
void load_balancing_loss(const LayerContext& layer, const RouterSpec& spec, const LoadBalanceState& layers, View sums);

}  // namespace sy
