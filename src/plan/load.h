// Expert load that a run recorded, and the ranks of a layout that it makes busy.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "src/config.h"

namespace sy {

// [MoE layer][expert] share of the layer's assignments that are routed to the expert and not
// dropped. The sum over a layer is less than 1 if some are dropped.
using Shares = std::vector<std::vector<double>>;

// Reads the load from a checkpoint, or from a run's newest one, over the last tenth of its steps
// (last_tenth).
// If the run had the capacity_factor of `config`, drops are as recorded. Otherwise an expert gets
// at most the share that its capacity allows in a scope with the average routing.
// If moe.expert_map is set, the shares are in the order of physical experts. Throws InputError if
// there is no history, or if it has another number of layers or experts.
Shares recorded_load(const std::filesystem::path& run, const Config& config);

// Computes the number of rows of each expert, [E], from its share of `assignments`. Only cumulative
// sums are rounded, so rounding errors do not accumulate.
void rows_of(const std::vector<double>& shares, Index assignments, std::span<Index> rows);

// [MoE layer][ep rank] sum over the experts of a rank, which are consecutive.
Shares by_rank(const Shares& load, int ep);
// Returns the load in which rank 0 is the busiest. In each layer the experts of the busiest rank
// swap with those of rank 0.
Shares busiest_first(const Shares& load, int ep);
// Returns a load in which each expert of a layer has the layer's mean.
Shares evened(const Shares& load);

}  // namespace sy
