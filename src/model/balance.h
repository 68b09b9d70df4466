// The load-balance loss of routers (Fedus et al., "Switch transformers", 2022):
//
//   aux_loss * (E / k) * sum_i f_i P_i over each scope of N tokens, averaged over the scopes:
//   f_i the share of assignments (times k) and P_i the mean probability of expert i.
//
// f has no gradient, so this is a linear function of the segments' sums of probabilities, with one factor for each segment and
// expert. A layer has a loss of its own; or all layers have one together, in which f_i and P_i are the means over the layers
// (transformers' load_balancing_loss_func). Either way it is taken when the last layer has routed: only backward asks for it,
// and ranks tell each other the counts of all layers at once.
#pragma once

#include "src/model/pass.h"
#include "src/params/block_specs.h"

namespace sy {

// G: this rank's segments, the longest runs of tokens that lie within one sequence on every rank. One, and empty, where there is
// no token.
Index balance_segments(const Pass& pass);

// Memory for the balance of L layers with E experts each, from pass.saved.
Balance make_balance(const Pass& pass, Index layers, Index experts);

// Computes dprobability of all these layers, whose routers are alike. sums: [L, RouterSums of E] f64, to which Backend::balance
// adds, or none. Collective where a scope is on several ranks.
void balance(const Pass& pass, const RouterSpec& spec, const Balance& layers, View sums);

}  // namespace sy
