// What a step reports, and where it goes: RUN/metrics.jsonl, what is made of it (sinks.h), and the terminal.
#pragma once

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/evaluate/evaluate.h"
#include "src/train/loss_history.h"
#include "src/train/sinks.h"

namespace sy {

struct StepMetrics {
  Index step = 0, tokens = 0;  // tokens: seen since the run began
  double loss = 0;             // mean cross-entropy in nats over the global batch
  double aux_loss = 0, z_loss = 0, lr = 0, grad_norm = 0, step_seconds = 0, tokens_per_second = 0;
  Index routed = 0, dropped = 0;  // assignments over all MoE layers; routed counts before dropping
};

// [layer][expert] sums since the last log line.
struct ExpertCounts {
  std::vector<std::vector<Index>> routed, dropped;
};

// Sums over the lines of RUN/metrics.jsonl, of all starts of a run.
struct RunTotals {
  double step_seconds = 0;
  Index best_step = -1;  // of the smallest validation loss; -1: there was no validation
  double best_loss = 0;
  void add(Index step, double seconds, std::optional<double> validation_loss);
};

// Facts from RUN/metrics.jsonl about the steps before the one that a run goes on with.
struct MetricsHistory {
  MissingSteps missing;
  LossRise rise;
  RunTotals totals;
};

// Appends to RUN/metrics.jsonl. Opened for a run that starts at `first_step`: lines of that step and later,
// left by a run that was cut off, are cut away in one step, and so is a last line that was written only in
// part. One warning names the steps that have no line. Every line is flushed, and goes to the
// sinks. Numbers are written in full; what is not finite is null. Throws Failure when the disk is
// full.
class MetricsFile {
 public:
  MetricsFile(const std::filesystem::path& run_dir, Index first_step, const MetricsSinks& sinks = {});
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  // validation: the domains' scores after this step; empty where there was none.
  void write(const StepMetrics& m, const ExpertCounts* experts, const std::vector<DomainScore>& validation = {});
  // After it returns, all lines are on the disk.
  void sync();
  const MetricsHistory& history() const { return history_; }  // as it was when the file was opened
  const RunTotals& totals() const { return totals_; }         // of all lines

 private:
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  MetricsHistory history_;
  RunTotals totals_;
  std::optional<SinkSet> sinks_;
};

// The warning that names the steps up to `last` that RUN/metrics.jsonl has no line of; "" if it has
// all.
std::string missing_steps_warning(const std::filesystem::path& run_dir, Index last);

// A plain line on standard output for the first step, every `every` steps and the last; on a terminal (standard error, or that
// of mpirun on this machine) also one line below them that every step rewrites. What cannot be written is lost without an
// error: it is not worth a run. Lines that stay go to the console log (dist/runtime.h), too.
class ProgressLine {
 public:
  ProgressLine(Index total_steps, Index every);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void step(const StepMetrics& m);
  void pause(double seconds, Index every);  // what comes every so many steps besides the steps takes so long
  void note(const std::string& text);       // a line that stays, above the rewritten one
  void clear();                             // takes the rewritten line away, before others print
  double elapsed() const;                   // seconds since it was made

 private:
  void show(const std::string& line);
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Index total_, every_, seen_ = 0;
  int terminal_;         // a descriptor; -1: there is none
  bool one_screen_;      // standard output appears on the same terminal
  double per_step_ = 0;  // smoothed seconds a step
  double pauses_ = 0;    // seconds of pauses for each step
  std::string shown_;
};

// Returns the line of a step. elapsed: seconds since training began. per_step: seconds of each
// remaining step; 0: not known yet.
std::string progress_text(const StepMetrics& m, Index total_steps, double elapsed, double per_step);
// The line of a validation: the loss of all tokens, and where there are several domains that of each.
std::string validation_text(Index step, Index total_steps, const std::vector<DomainScore>& scores);

}  // namespace sy
