// What the routers chose over time: windows of steps, bounded in number and in bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace sy {

// Counts of the router's choices. [window][layer][expert], flattened; a window is the steps between two log
// lines.
struct ExpertHistory {
  Index layers = 0, experts = 0;
  std::vector<std::int64_t> steps;  // [window] the last step of each
  std::vector<std::int64_t> routed,
      dropped;                          // [window, layer, expert] assignments before dropping; those dropped
  std::vector<float> probability;       // [window, layer, expert] mean probability
  std::vector<std::int64_t> layer_ids;  // [layer] the block that each MoE layer is in
  Index windows() const { return static_cast<Index>(steps.size()); }

  // Adds the window that ends with `step`. Where there are as many as there may be, old ones are merged first, so that a
  // history stays within its bounds and loses no count.
  void append(std::int64_t step, std::span<const std::int64_t> routed_now, std::span<const std::int64_t> dropped_now,
              std::span<const float> probability_now);
  // The most windows that it may have: all together no more than max_bytes, but eight at least, since fewer are no course.
  Index bound() const;

  static constexpr Index max_windows = 2048, max_bytes = Index{64} << 20;
  static constexpr Index cell_bytes = 2 * sizeof(std::int64_t) + sizeof(float);  // of an expert in a window
};

// Load of the busiest over the mean load, of experts or of the ranks that hold them: 1 at perfect balance, and where there is
// no load. Less 1 it is MaxVio (Wang et al., "Auxiliary-loss-free load balancing", 2024).
double max_over_mean(std::span<const Index> loads);

// Halves the resolution of the older half: windows (0, 1), (2, 3), ... become one each.
void merge_older_half(ExpertHistory& history);

}  // namespace sy
