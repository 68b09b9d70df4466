// Results of a training, read from RUN/metrics.jsonl, and statistics of several.
#pragma once

#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "src/train/loss_history.h"

namespace sy {

inline constexpr double not_known = std::numeric_limits<double>::quiet_NaN();

struct StepRecord {
  Index step = 0, tokens = 0, routed = 0, dropped = 0;
  double loss = 0, seconds = 0, tokens_per_second = 0;  // NaN if not finite
  // Energy of the processors and the memory of all hosts, and of all GPUs; NaN if unknown.
  double cpu_joules = 0, gpu_joules = 0;
};
struct LossAt {
  Index step = 0;
  double loss = 0;  // nats per token; NaN if not finite
};
struct Outcome {
  std::vector<StepRecord> steps;
  std::vector<LossAt> validation;
  MissingSteps missing;  // up to the last requested step
  // max load / mean load - 1, averaged over the layers (MaxVio: Wang et al., "Auxiliary-loss-free
  // load balancing", 2024). It is from the last line with expert counts; NaN without experts.
  double max_violation = 0;

  Index last_step() const { return steps.empty() ? 0 : steps.back().step; }
  // The last tenth of the steps, rounded down, but at least one; empty without steps.
  std::span<const StepRecord> last_tenth() const;
  // Last validation loss. If there is none, the mean training loss of the last tenth of the steps;
  // NaN without steps.
  double loss() const;
  // Dropped share of the assignments in the last tenth of the steps; NaN if nothing was routed.
  double dropped() const;
  // Median, without the first tenth of the steps; NaN without steps.
  double tokens_per_second() const;
};
// Reads the outcome of a run. Without metrics.jsonl it has no steps. steps: how many steps the run
// was to train.
// Skips damaged or incomplete lines, which a resumed run may have.
Outcome read_outcome(const std::filesystem::path& run, Index steps = 0);

double median(std::vector<double> values);  // NaN if empty
double mean(const std::vector<double>& values);
// Sample standard deviation; NaN of fewer than two values.
double deviation(const std::vector<double>& values);

// Confidence interval of a median, without an assumption about the distribution.
struct MedianInterval {
  double low = 0, high = 0;
  double coverage = 0;  // probability that such an interval contains the median
};

// Returns the narrowest interval between two order statistics, x_(j) and x_(n+1-j), that covers the
// median with at least this probability. Fewer than 6 values cannot cover it with 95 %: then it is
// the range of the values, whose `coverage` is below `confidence`. Empty for fewer than two values.
//
// The values must be independent and of one continuous distribution. Le Boudec, "Performance
// evaluation of computer and communication systems", 2010, section 2.2.2.
std::optional<MedianInterval> median_interval(std::vector<double> values, double confidence = 0.95);

}  // namespace sy
