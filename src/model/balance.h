// The load-balance loss of routers (Fedus et al., "Switch transformers", 2022):
//
//   aux_loss * (E / k) * sum_i f_i P_i over each scope of N tokens, averaged over the scopes:
//   f_i the share of assignments (times k) and P_i the mean probability of expert i.
//
// f has no gradient, so this is a linear function of the segments' sums of probabilities, with one factor for each segment and
// expert. A layer has a loss of its own, taken as soon as it has routed; or all layers have one together, in which f_i and P_i
// are the means over the layers (transformers' load_balancing_loss_func), taken when the last layer has routed.
#pragma once

#include "src/model/pass.h"
#include "src/params/block_specs.h"

namespace sy {

// G: this rank's segments, the longest runs of tokens that lie within one sequence on every rank. One, and empty, where there is
// no token.
Index balance_segments(const Pass& pass);

// Memory for the balance of L layers. dprobability: [L, G, E]; the rest is taken from `within`.
Balance make_balance(View dprobability, Arena& within);

// Computes dprobability of all these layers, which have one loss together where they are several. sums: [L, RouterSums of E] f64,
// to which Backend::balance adds, or none. Collective where a scope is on several ranks.
void balance(const Pass& pass, const RouterSpec& spec, const Balance& layers, View sums);

}  // namespace sy
