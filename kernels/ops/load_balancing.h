// Losses that balance the load of experts, and statistics of routers.
#pragma once

#include "kernels/ops/operation.h"

namespace sy {

// Scopes of a load-balancing loss: of N segments of all ranks, each `per_scope` consecutive ones
// form a scope. A call covers the G segments from number `first` on.
struct LoadBalancingDesc {
  Index first = 0, per_scope = 1;
  bool together = false;  // true: one loss for all layers of the call
  // loss = factor * the sum over scopes and experts of assignments * probability
  double factor = 0;
  double z_factor = 0;  // router z-loss = z_factor * the sum of squared logsumexps
};

// Layout of the f64 row of sums that LoadBalancingLoss writes for a router of E experts. Each
// function returns the offset of a field.
struct RouterSums {
  Index experts;
  constexpr Index routed() const { return 0; }         // [E] assignments
  constexpr Index dropped() const { return experts; }  // [E] dropped assignments
  // [E] sums over tokens of the probability
  constexpr Index probability() const { return 2 * experts; }
  constexpr Index loss() const { return 3 * experts; }  // [2] load-balancing loss, router z-loss
  constexpr Index size() const { return 3 * experts + 2; }
};

namespace ops {

// Load-balancing and z-losses, their gradients, and statistics of the routers of L layers. The P
// ranks number their segments p * G + g. Segment g of this rank is in scope (first + g) /
// per_scope, or in the last scope.
//   dprobability = factor * the assignments in the scope (of the layer or of all)
//   loss = the sum over g, e of dprobability * probability,   z-loss = z_factor * z_squared
struct LoadBalancingLoss {
  static constexpr std::string_view name = "load_balancing_loss";
  ConstView counts;             // [L, G, E] i32 of RouteForward
  ConstView scope_counts;       // [P, L, G, E] i32 counts of P ranks
  ConstView probability;        // [L, G, E] of RouteForward
  ConstView tokens_per_expert;  // [L, E] i32 of DispatchLayout
  ConstView z_squared;          // [L] f64 of RouteForward
  LoadBalancingDesc desc = {};
  View dprobability;  // [L, G, E]
  View sums = {};     // [L, RouterSums(E).size()] f64 +=; may be empty
  bool is_empty() const { return counts.elements() == 0; }
  Cost cost() const { return Cost().reads(counts, scope_counts, probability).writes(dprobability, sums); }
};

}  // namespace ops

}  // namespace sy
