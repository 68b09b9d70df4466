#include "src/train/pipeline_schedule.h"

namespace sy {

std::vector<ScheduledPass> one_forward_one_backward(Index micro_batches, Index in_flight) {
  using enum ScheduledPass::Direction;
  std::vector<ScheduledPass> passes;
  Index started = 0;
  for (Index finished = 0; finished < micro_batches; ++finished) {
    while (started < micro_batches && started < finished + in_flight) passes.push_back({forward, started++});
    passes.push_back({backward, finished});
  }
  return passes;
}

}  // namespace sy
