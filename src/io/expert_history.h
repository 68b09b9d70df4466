// History of routing counts: windows of steps, bounded in number and in bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// Routing counts by [window, layer, expert], flattened.
// A window is the steps between two log lines.
struct ExpertHistory {
  Index layers = 0, experts = 0;
  std::vector<std::int64_t> steps;  // [window] last step of each
  std::vector<std::int64_t> routed,
      dropped;                          // [window, layer, expert] assignments: all, and dropped
  std::vector<float> probability;       // [window, layer, expert] mean probability
  std::vector<std::int64_t> layer_ids;  // [layer] block index of each MoE layer
  Index windows() const { return static_cast<Index>(steps.size()); }

  // Appends the window that ends with `step`. If the history is full, it first merges old windows,
  // so that no count is lost.
  void append(std::int64_t step, std::span<const std::int64_t> routed_now, std::span<const std::int64_t> dropped_now,
              std::span<const float> probability_now);
  // Returns the maximum number of windows: together at most max_bytes, but at least eight, since
  // fewer do not show the course of training.
  Index bound() const;

  static constexpr Index max_windows = 2048, max_bytes = Index{64} << 20;
  // Bytes per expert and window.
  static constexpr Index cell_bytes = 2 * sizeof(std::int64_t) + sizeof(float);
};

// Returns the maximum load over the mean load, of experts or of ranks. 1 at perfect balance, and if
// there is no load. Minus 1 it is MaxVio (Wang et al., "Auxiliary-loss-free load balancing", 2024).
double max_over_mean(std::span<const Index> loads);

// Halves the resolution of the older half: merges windows (0, 1), (2, 3), ...
void merge_older_half(ExpertHistory& history);

}  // namespace sy
