// The load history of the experts. Counts are summed in a window until a log line or a checkpoint
// closes it.
#pragma once

#include "src/io/checkpoint.h"
#include "src/train/metrics.h"
#include "src/train/trainer.h"

namespace sy {

// Sums of the routers' counts since the last closed window.
class HistoryWindow {
 public:
  // Steps whose probabilities are not finite do not count in the mean of the probabilities. If the
  // window has no other step, the mean is NaN.
  void add(const StepResult& result);
  // Appends the window that ends with `step` and starts an empty one. No-op if no step was added.
  void close(Index step, ExpertHistory& history);

 private:
  std::vector<std::vector<Index>> routed_, dropped_;
  std::vector<std::vector<double>> probability_;
  Index steps_ = 0, finite_steps_ = 0;
};

// Returns the sum of the windows after `step`. A log line may span windows that checkpoints closed.
ExpertCounts counts_since(Index step, const ExpertHistory& history);

}  // namespace sy
