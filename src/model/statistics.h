// Statistics of passes: losses and routing counts.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// Routing statistics of one MoE layer, summed over this rank's tokens.
struct RouterStats {
  std::vector<Index> routed, dropped;  // [E] assignments: all, and dropped ones
  std::vector<double> probability;     // [E] sum over tokens of the probability
  double aux_loss = 0, z_loss = 0;     // this rank's terms of the losses that the layer adds
};

// Sums over all passes since the last read, on this rank.
struct Statistics {
  std::vector<RouterStats> layers;  // of each MoE layer
  // Sums over this rank's tokens with a target: cross-entropy in nats, and logsumexp^2.
  double loss_sum = 0, lse_square_sum = 0;
  // The same sums of each module of multi-token prediction.
  struct Mtp {
    double loss_sum = 0, lse_square_sum = 0;
  };
  std::vector<Mtp> mtp;
  // Sum of the losses of all indexers in nats, over all tokens. Empty without indexers.
  std::optional<double> indexer_loss_sum;
};

// Routing decisions for this rank's tokens, for analyses and tests of single tokens.
struct RoutingView {
  // [T, E], [T, k] i32 (-1: padding, which no expert receives), [T, k], [T, k] i32 (0: dropped)
  ConstView logits, experts, weights, dispatch_mask;
};
using RoutingHook = std::function<void(const RoutingView&)>;

// Destination of a pass's statistics. The sums are in device memory, so the host does not wait.
struct StatisticsSink {
  View layers;  // [MoE layers, RouterSums of E] f64 += by ops::LoadBalancingLoss; or empty
  View loss;    // [2] f64 += by Device::loss_sums; or empty
  View mtp;     // [D, 2] f64 the same of the D modules of multi-token prediction; or empty
  // Called by each MoE layer in order, once a pass; may be nullptr.
  const RoutingHook* routing_hook = nullptr;
  // [query heads of all layers]: maximum logits, and at least 0, of this rank's heads; or empty
  View max_logits = {};
  View indexer_loss = {};  // [1] f64 += by ops::IndexerLoss; or empty
};

}  // namespace sy
