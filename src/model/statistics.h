// What passes find besides gradients, and who is told.
#pragma once

#include <functional>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// What the routers of one MoE layer did, summed over this rank's tokens.
struct RouterStats {
  std::vector<Index> routed, dropped;  // [E] assignments before dropping; those dropped
  std::vector<double> probability;     // [E] sum over tokens of the probability
  double aux_loss = 0, z_loss = 0;     // this rank's part of the sums that the layer adds to the training loss
};

// What passes over the model found since it was last read, on this rank.
struct Statistics {
  std::vector<RouterStats> layers;          // of each MoE layer
  double loss_sum = 0, lse_square_sum = 0;  // over this rank's tokens with a target: cross-entropy in nats, logsumexp^2
};

// What a router decided for this rank's tokens, shown to an observer: analyses and tests that look at single tokens.
struct RoutingView {
  ConstView logits, experts, weights, keep;  // [T, E], [T, k] i32, [T, k], [T, k] i32 (1 kept, 0 dropped)
};
using RoutingObserver = std::function<void(const RoutingView&)>;

// Whom a pass tells what it found. The sums lie on the backend, so that the host need not wait for any.
struct Report {
  View layers;  // [MoE layers, RouterSums of E] f64, which Backend::balance adds to, or none
  View loss;    // [2] f64, which Backend::loss_sums adds to, or none
  const RoutingObserver* observer = nullptr;  // called by each MoE layer in order, once a pass
};

}  // namespace sy
