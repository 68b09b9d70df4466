// Expert load, from the history that every checkpoint carries.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "src/io/checkpoint.h"

namespace sy {

struct ExpertLoad {
  Index routed = 0, dropped = 0;
  double share = 0;        // of the layer's assignments, before dropping
  double drop_rate = 0;    // dropped / routed; 0 where nothing was routed
  double probability = 0;  // mean softmax score
};

struct LayerLoad {
  Index layer = 0;          // the block
  std::vector<ExpertLoad> experts;
  double drop_rate = 0;
  double max_over_mean = 0;  // load of the busiest expert / mean load: 1 at perfect balance
  double cv = 0;             // coefficient of variation: standard deviation / mean of the loads
  double entropy = 0;        // of the shares, divided by log E: 1 at perfect balance; 1 when E = 1
};

// Windows [first, last) of the history summed.
std::vector<LayerLoad> layer_loads(const ExpertHistory& history, Index first, Index last);
std::vector<LayerLoad> layer_loads(const ExpertHistory& history);

}  // namespace sy
