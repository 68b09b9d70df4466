// Mixture of experts as data: router, experts and shared experts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/random.h"
#include "kernels/ops/route.h"
#include "src/params/mlp_spec.h"

namespace sy {

// The router of a layer. `switchyard help config` has the details at keys of [moe] of these names.
struct RouterSpec {
  RouteDesc route;
  double capacity_factor;  // capacity of an expert / mean load (expert_capacity()); 0: dropless
  CapacityScope capacity_scope;
  DropOrder drop_order;
  double aux_loss;  // factor of the load-balancing loss
  AuxScope aux_scope;
  double z_loss;                 // factor of the router z-loss
  bool joint_balancing = false;  // true: one load-balancing loss for all layers
  bool bias = false;             // bias of the logits
  // Only while training: noise of the selection, and jitter of the input (ops::Jitter). The router
  // sets their seed and stream. Empty if there is no noise or no jitter.
  std::optional<RandomDesc> noise{}, jitter{};
  bool learned_noise_stddev = false;  // true: noisy top-k gating with a learned standard deviation
};

// A layer of E experts. Each token uses k of them, and all shared experts.
struct MoeSpec {
  Index experts;  // E
  RouterSpec router;
  MlpSpec expert;                 // of each expert
  std::optional<MlpSpec> shared;  // all shared experts as one network
  // [E] logical expert of each physical one; empty: the identity
  std::vector<Index> physical_to_logical{};
};

void add_params(ParamList& list, const std::string& name, const MoeSpec& m);
// The chosen experts are among the weights that multiply a token (ParamCount::active).
inline SublayerCosts costs(const MoeSpec&, Index) {
  return {};
}
inline NamedSizes sizes_of(const MoeSpec&) {
  return {};
}

}  // namespace sy
