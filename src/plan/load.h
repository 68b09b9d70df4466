// A load of experts that a run recorded, and which ranks of a layout it makes busy.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "src/config.h"

namespace sy {

// [MoE layer][expert] the share of all assignments of the layer that the expert keeps; less than 1 together where some are
// dropped.
using Shares = std::vector<std::vector<double>>;

// From the history in a run's newest checkpoint, or in a checkpoint, over the last tenth of its steps (last_tenth). What was
// dropped is as it was recorded where the run had the capacity_factor of `config`; otherwise an expert keeps as many as that
// allows it in a scope that is routed as all were. By place, where moe.placement gives the experts other places than their own.
// Throws InputError where there is no history, or one of another number of layers or experts.
Shares recorded_load(const std::filesystem::path& run, const Config& config);

// The numbers of rows that `assignments` become by these shares: [E]. Their sum is rounded once, so that it is as near as can
// be.
void rows_of(const std::vector<double>& shares, Index assignments, std::span<Index> rows);

// [MoE layer][ep rank] what the experts of each rank keep together; consecutive experts are one rank's.
Shares by_rank(const Shares& load, int ep);
// The load as it is for the busiest ranks: in each layer the experts of the busiest one change places with the first ones.
Shares busiest_first(const Shares& load, int ep);
// Every expert of a layer keeps the mean.
Shares evened(const Shares& load);

}  // namespace sy
