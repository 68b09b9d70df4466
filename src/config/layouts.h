// The layouts that a configuration fits.
#pragma once

#include <vector>

#include "src/config.h"

namespace sy {

// Every layout of so many ranks that fits the model and the batch, by tp, ep and etp.
std::vector<Layout> layouts_of(const Config& config, int ranks);

}  // namespace sy
