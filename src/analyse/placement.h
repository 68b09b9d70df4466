// Which rank holds which experts: what the observed load means for the ranks, and a placement that evens it out.
#pragma once

#include "src/analyse/experts.h"
#include "src/analyse/figures.h"

namespace sy {

struct LayerPlacement {
  std::int64_t layer = 0;    // the block
  std::vector<Index> order;  // [E] the expert in each place; rank r holds places [r * E / ep, (r + 1) * E / ep)
  std::vector<Index> before,
      after;  // [ep] assignments of each rank, with the experts in their order, and with this one
};

// Longest processing time first (Graham, 1969), with as many experts on each rank: experts by falling load go to the rank with
// the least load that has a place left; ties go to the lower expert and rank. The experts of a rank are in rising order.
// Where the usual order is as even, it stays. Throws InputError unless `ranks` divides the experts.
std::vector<LayerPlacement> place_experts(const std::vector<LayerLoad>& load, Index ranks);

Section placement_section(const std::vector<LayerPlacement>& placement);
// {"ep": 4, "experts": 8, "layers": [{"layer": 0, "order": [...], "max_over_mean_before", "max_over_mean"}]}
Json placement_json(const std::vector<LayerPlacement>& placement);

}  // namespace sy
