// What became of a training, by its RUN/metrics.jsonl.
#pragma once

#include <filesystem>
#include <limits>
#include <vector>

#include "kernels/tensor.h"
#include "src/train/loss_history.h"

namespace sy {

inline constexpr double not_known = std::numeric_limits<double>::quiet_NaN();

struct StepRecord {
  Index step = 0, tokens = 0, routed = 0, dropped = 0;
  double loss = 0, seconds = 0, tokens_per_second = 0;  // NaN where it is not finite
};
struct LossAt {
  Index step = 0;
  double loss = 0;  // nats per token; NaN where it is not finite
};
struct Outcome {
  std::vector<StepRecord> steps;
  std::vector<LossAt> validation;
  MissingSteps missing;  // up to the last step that was asked for
  // Of the last line with the experts' counts: max load / mean load - 1, on average over the layers (MaxVio: Wang et al.,
  // "Auxiliary-loss-free load balancing", 2024); NaN without experts.
  double max_violation = 0;

  Index last_step() const { return steps.empty() ? 0 : steps.back().step; }
  // The last validation loss, or without any the mean training loss of the last tenth of the steps; NaN without steps.
  double loss() const;
  double dropped() const;  // share of the assignments, in the last tenth of the steps; NaN where nothing was routed
  double tokens_per_second() const;  // the median, the first tenth left out; NaN without steps
};
// Lines that are no whole line of ours are passed over, as a run that goes on has one at times. A file that is not there has
// no steps. steps: how many the run was to train.
Outcome read_outcome(const std::filesystem::path& run, Index steps = 0);

// The step of the last whole line in RUN/metrics.jsonl, by the file's end alone; 0: none. For
// progress.
Index last_step(const std::filesystem::path& run);

double median(std::vector<double> values);  // NaN of none
double mean(const std::vector<double>& values);
double deviation(const std::vector<double>& values);  // the standard deviation of a sample; NaN of fewer than two

}  // namespace sy
