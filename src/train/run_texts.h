// The texts with which a start of `switchyard train` begins in RUN/train.log, and with which a training ends.
#pragma once

#include <filesystem>
#include <string>

#include "src/config.h"
#include "src/train/metrics.h"

namespace sy {

// The first line of a start in RUN/train.log: time, program, host, ranks and command line.
std::string start_text(const Config& config, int ranks);

struct RunEnd {
  std::filesystem::path run;
  Index first_step = 1, last_step = 0;  // of this start
  double seconds = 0;                   // that this start took
  RunTotals totals;
  bool can_evaluate = false, has_experts = false, can_generate = false;
};
// Says how long a training took, which validation was the best, where the checkpoint is, and which commands may follow.
std::string end_text(const RunEnd& end);

}  // namespace sy
