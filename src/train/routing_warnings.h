// Warnings about unwanted routing: most assignments dropped, or experts without tokens.
#pragma once

#include <string>
#include <vector>

#include "src/train/metrics.h"

namespace sy {

class RoutingWarnings {
 public:
  // last_step: the step before the first counted one.
  // names: [MoE layer] Config::layer_name
  RoutingWarnings(Index last_step, std::vector<std::string> names) : last_step_(last_step), names_(std::move(names)) {}

  // Returns the new warnings at the log line of `step`. counts: sums since the previous log line.
  // Warns once if more than half of the assignments were dropped.
  // Warns of experts without tokens, once each layer has 64 assignments per expert on average.
  // Repeats that warning only if the number of such experts has doubled.
  std::vector<std::string> add(Index step, const ExpertCounts& counts);

 private:
  void add_drops(Index step, const ExpertCounts& counts, std::vector<std::string>& out);
  void add_dead_experts(Index step, std::vector<std::string>& out);

  Index last_step_;  // step of the previous log line
  std::vector<std::string> names_;
  bool warned_of_drops_ = false;
  // experts without tokens in the last warning; last step before the counts in `routed_`
  Index warned_dead_experts_ = 0, dead_since_ = -1;
  std::vector<std::vector<Index>> routed_;  // [MoE layer][expert] since dead_since_
};

}  // namespace sy
