// A training run: batches by the step, not by the rank; metrics; checkpoints; resume.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/runtime.h"
#include "src/data/dataset.h"
#include "src/io/checkpoint.h"
#include "src/model/engine.h"
#include "src/train/grad_sync.h"
#include "src/train/memory.h"
#include "src/train/metrics.h"

namespace sy {

// What one optimizer step did, the same on every rank.
struct StepResult {
  StepMetrics metrics;
  std::vector<std::vector<Index>> routed, dropped;  // [MoE layer][expert], over the global batch
  std::vector<std::vector<double>> probability;     // [MoE layer][expert] mean probability
};

// What the ranks add up at the end of a step, beside gradients: of each MoE layer and expert the assignments, those that were
// dropped and the sum of probabilities; then the losses: cross-entropy, balance, and both z-losses.
std::vector<double> step_sums(const Statistics& found, double output_z_loss);

// The error of a step whose loss or gradient norm is not finite. It says which of them is not.
std::string not_finite_text(const StepMetrics& m);
// The loss or the norm of the gradient is not finite. Thrown on all ranks.
struct Diverged : AgreedError {
  using AgreedError::AgreedError;
};

// One step after another, without files or signals: what tests and benchmarks drive.
class Trainer {
 public:
  Trainer(Engine& engine, const SampleStream& samples);

  // Trains on the next global batch. Collective. Throws Failure on every rank when the gradient is not finite; the
  // parameters are then those before the step.
  StepResult step();

  Index steps_done() const { return step_; }
  Index samples_done() const { return samples_done_; }
  Index tokens_done() const { return tokens_done_; }
  void set_progress(Index step, Index samples, Index tokens) {
    step_ = step;
    samples_done_ = samples;
    tokens_done_ = tokens;
  }

 private:
  void update_router_bias(const StepResult& result);

  Engine& engine_;
  const SampleStream& samples_;
  GradSync grad_sync_;
  Index step_ = 0, samples_done_ = 0, tokens_done_ = 0;
};

// How `switchyard train` goes about it.
struct RunOptions {
  bool quiet = false;    // tells the last step, warnings and errors
  bool dry_run = false;  // checks and tells what would be trained, and writes nothing
  int ranks = 0;         // a dry run's; 0: those of the world
  // The machine of a dry run: its name, and the memory that a rank needs there. Empty: this machine.
  // machine_memory throws InputError if the rank has less. vocab: the rows of the embedding.
  std::string machine;
  std::function<MemoryPlan(Index vocab)> machine_memory;
};

// Throws InputError if run.dir is not set.
void check_run_dir(const Config& config);

// `switchyard train`: everything around the steps, on all ranks of `world`. Returns the exit code.
int run_training(Comm& world, const Config& config, const RunOptions& how);

}  // namespace sy
