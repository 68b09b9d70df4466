// What a step reports, and where it goes: RUN/metrics.jsonl and the terminal.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/tensor.h"

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

// Appends to RUN/metrics.jsonl. Opened for a run that starts at `first_step`: lines of later steps, left by a run that
// was cut off, are removed. Throws Failure when the disk is full.
class MetricsFile {
 public:
  MetricsFile(const std::filesystem::path& run_dir, Index first_step);
  ~MetricsFile();
  void write(const StepMetrics& m, const ExpertCounts* experts);

 private:
  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

// One line that is rewritten on a terminal; plain lines, every `every` steps, elsewhere.
class ProgressLine {
 public:
  ProgressLine(Index total_steps, Index every);
  void step(const StepMetrics& m);
  void note(const std::string& text);  // a line of its own, above the progress
  void finish();

 private:
  Index total_, every_;
  bool terminal_;
  double started_, per_step_ = 0;
  Index first_ = -1;
};

}  // namespace sy
