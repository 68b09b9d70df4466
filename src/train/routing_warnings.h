// Warnings about routing that is hardly meant: most assignments dropped, experts without tokens.
#pragma once

#include <string>
#include <vector>

#include "src/config.h"
#include "src/train/metrics.h"

namespace sy {

class RoutingWarnings {
 public:
  // last_step: the step before the first window. layer_ids: [MoE layer] its block.
  RoutingWarnings(Index last_step, std::vector<std::int64_t> layer_ids)
      : last_step_(last_step), layer_ids_(std::move(layer_ids)) {}

  // The new warnings at the log line of `step`; counts: of the steps since the line before. Drops are told once. Dead experts are
  // told when there are some, and again when they are twice as many.
  std::vector<std::string> add(Index step, const ExpertCounts& counts);

 private:
  void add_drops(Index step, const ExpertCounts& counts, std::vector<std::string>& out);
  void add_dead_experts(Index step, std::vector<std::string>& out);

  Index last_step_;  // of the window before
  std::vector<std::int64_t> layer_ids_;
  bool drops_told_ = false;
  Index dead_told_ = 0, dead_since_ = -1;   // experts; the last step before `routed_`
  std::vector<std::vector<Index>> routed_;  // [MoE layer][expert] of as many windows as it takes to judge
};

}  // namespace sy
