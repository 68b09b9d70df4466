// Metrics of a step and their outputs: RUN/metrics.jsonl, the sinks made from it (sinks.h), the
// terminal.
#pragma once

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/evaluate/evaluate.h"
#include "src/train/loss_history.h"
#include "src/train/sinks.h"

namespace sy {

// Energy of a step, of all ranks together; NaN if it is unknown.
struct StepEnergy {
  double cpu_joules = 0;  // processor packages and memory of the hosts, other programs included
  double gpu_joules = 0;  // all GPUs of the ranks
};

// How often the text of each domain is read (SampleStream::epochs), by name.
using DomainEpochs = std::vector<std::pair<std::string, double>>;

struct StepMetrics {
  Index step = 0, tokens = 0, samples = 0;  // tokens and samples: since the run began
  double loss = 0;                          // mean cross-entropy in nats over the global batch
  // The same of multi-token prediction, as a mean over its modules. Empty without modules.
  std::optional<double> mtp_loss;
  // Mean loss of an indexer over all tokens and indexers, in nats. Empty without indexers.
  std::optional<double> indexer_loss;
  // Load-balancing losses and z-losses with their factors, in nats per token. The gradient norm is
  // that before clipping.
  double aux_loss = 0, z_loss = 0, lr = 0, grad_norm = 0, step_seconds = 0;
  double tokens_per_second = 0;  // of all ranks, without padding
  double tflops_per_second_per_rank = 0;
  // Time for which checkpoints held up training between the step before and this one.
  double save_seconds = 0;
  // Model FLOPs utilization; empty if the machine's peak is unknown.
  std::optional<double> mfu;
  std::optional<StepEnergy> energy;  // empty without log.energy
  // Steps that were skipped since the run began. Empty if train.spike_sigma is 0 and none was
  // skipped.
  std::optional<Index> skipped_steps;
  // Assignments over all MoE layers; routed counts before dropping.
  Index routed = 0, dropped = 0;
  DomainEpochs epochs = {};  // since the run began
};

// [layer][expert] sums since the last log line.
struct ExpertCounts {
  std::vector<std::vector<Index>> routed, dropped;
};

// Returns the line of a step in RUN/metrics.jsonl. time: end of the step in seconds since 1970.
Json metrics_line(const StepMetrics& m, const ExpertCounts* experts, const std::vector<DomainScore>& validation,
                  double time);

// Sums over the lines of RUN/metrics.jsonl, for all starts of a run.
struct RunTotals {
  double step_seconds = 0;
  Index best_step = -1;  // step of the smallest validation loss; -1 if there is none
  double best_loss = 0;
  void add(Index step, double seconds, std::optional<double> validation_loss);
};

// Facts from RUN/metrics.jsonl about the steps before the one with which a run continues.
struct MetricsHistory {
  MissingSteps missing;
  LossRise rise;
  RunTotals totals;
  RecentSkips skips;
  Index counted = 0;  // step of the last line with ExpertCounts; 0 if there is none
};

// Appends to RUN/metrics.jsonl.
// The file is opened for a run that starts at `first_step`. Lines of that step and later, and an
// incomplete last line, are cut off in one operation. One warning names the steps that have no
// line.
// Every line is flushed and passed to the sinks. Numbers are written in full precision; a number
// that is not finite is null. Opening throws InputError or Failure (open_for_writing()). Writing
// throws Failure.
class MetricsFile {
 public:
  MetricsFile(const std::filesystem::path& run_dir, Index first_step, const MetricsSinks& sinks = {});
  // validation: scores of the domains after this step; empty if the step has no validation.
  void write(const StepMetrics& m, const ExpertCounts* experts, const std::vector<DomainScore>& validation = {});
  // Tells the sinks that the training is over (MetricsSink::finish).
  void finish(bool success) { sinks_->finish(success); }
  // Returns after all lines are on the disk.
  void sync();
  const MetricsHistory& history() const { return history_; }  // at the time of opening
  const RunTotals& totals() const { return totals_; }         // of all lines

 private:
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  MetricsHistory history_;
  RunTotals totals_;
  std::optional<SinkSet> sinks_;
};

// Returns the step of the last complete line in RUN/metrics.jsonl, or 0 if there is none. Reads
// only the end of the file.
Index last_step(const std::filesystem::path& run);

// Returns a warning that names the steps up to `last` without a line in RUN/metrics.jsonl. Empty if
// all steps have one.
std::string missing_steps_warning(const std::filesystem::path& run_dir, Index last);

// Progress on the terminal. Prints a line for the first step, every `every` steps and the last, to
// standard output, or to standard error if both end on the same terminal.
// On a terminal (standard error, or that of mpirun on this machine), one line below them is
// rewritten every step. Write errors are ignored, because they must not end a run. Permanent lines
// also go to the console log (dist/console.h).
class ProgressLine {
 public:
  ProgressLine(Index total_steps, Index every);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void step(const StepMetrics& m);
  // Sets the time of pauses in the estimate: `seconds` every `every` steps.
  void pause(double seconds, Index every) { pauses_ = seconds / static_cast<double>(every); }
  void note(const std::string& text);  // prints a permanent line above the rewritten one
  void clear();                        // removes the rewritten line before others print
  double elapsed() const;              // seconds since construction

 private:
  void show(const std::string& line);
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Index total_, every_, steps_seen_ = 0;
  int terminal_;         // file descriptor; -1 if there is none
  bool same_terminal_;   // standard output appears on the same terminal
  double per_step_ = 0;  // smoothed seconds per step
  double pauses_ = 0;    // seconds of pauses per step
  std::string shown_line_;
};

// Returns the line of a step. elapsed: seconds since training began. per_step: seconds of each
// remaining step; 0 means unknown.
std::string progress_text(const StepMetrics& m, Index total_steps, double elapsed, double per_step);
// Returns the line of a validation: the loss over all tokens and, if there are several domains, of
// each.
std::string validation_text(Index step, Index total_steps, const std::vector<DomainScore>& scores);

}  // namespace sy
