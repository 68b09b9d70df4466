// Placement of experts on ranks: the ranks' observed load, and a placement that balances it.
#pragma once

#include "src/analyse/experts.h"
#include "src/analyse/figures.h"

namespace sy {

struct LayerPlacement {
  std::int64_t layer = 0;  // index of the block
  // [E] logical expert of each physical one.
  // Rank r holds the physical experts [r * E / ep, (r + 1) * E / ep).
  std::vector<Index> physical_to_logical;
  // [ep] assignments of each rank: in the original order, and with this placement.
  std::vector<Index> before, after;
};

// Balances the ranks by longest processing time first (Graham, 1969), with equally many experts per
// rank.
// Experts by falling load go to the rank with the least load that is not full yet. Ties go to the
// lower expert and rank. The experts of a rank are in rising order.
// If the original order is as even, it stays. Throws InputError unless `ranks` divides the number
// of experts.
std::vector<LayerPlacement> balance_placement(const std::vector<LayerLoad>& load, Index ranks);

// layers: the names of the layers.
Section placement_section(const std::vector<LayerPlacement>& placement, const Dimension& layers);
// {"ep": 4, "experts": 8,
//  "layers": [{"layer": 0, "order": [...], "max_over_mean_before", "max_over_mean"}]}
Json placement_json(const std::vector<LayerPlacement>& placement);

}  // namespace sy
