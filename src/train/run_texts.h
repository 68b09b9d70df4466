// The texts at the start and at the end of a training. The first goes to RUN/train.log.
#pragma once

#include <filesystem>
#include <string>

#include "src/config.h"
#include "src/train/metrics.h"

namespace sy {

// Returns the first line of a start in RUN/train.log: time, program, host, ranks and command line.
std::string start_text(const Config& config, int ranks);

struct RunEnd {
  std::filesystem::path run;
  Index first_step = 1, last_step = 0;  // of this start
  double seconds = 0;                   // duration of this start
  RunTotals totals;
  bool can_evaluate = false, has_experts = false, can_generate = false;
};
// Returns the duration, the best validation, the checkpoint and useful next commands.
std::string end_text(const RunEnd& end);

}  // namespace sy
