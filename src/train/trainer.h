// A training run: batches that depend on the step and not on the rank, metrics, checkpoints,
// resume.
#pragma once

#include <functional>
#include <string>

#include "dist/runtime.h"
#include "src/data/dataset.h"
#include "src/io/checkpoint.h"
#include "src/io/norm_history.h"
#include "src/model/engine.h"
#include "src/train/distributed_optimizer.h"
#include "src/train/memory.h"
#include "src/train/metrics.h"
#include "src/train/performance.h"

namespace sy {

// Result of one optimizer step. Except for times and speed in `metrics`, it is equal on every rank.
struct StepResult {
  StepMetrics metrics;
  std::vector<std::vector<Index>> routed, dropped;  // [MoE layer][expert], over the global batch
  std::vector<std::vector<double>> probability;     // [MoE layer][expert] mean probability
  bool skipped = false;                             // its update was skipped (train.spike_sigma)
  double norm_limit = 0;                            // NormHistory::limit of this step
};
// Gradient norm of a parameter before clipping.
struct ParamNorm {
  std::string name;
  double norm;
};

// Returns the values that ranks sum at the end of a step, besides gradients: [3 L E + n + 3], for L
// MoE layers, E experts and n of the optional sums.
// - For each MoE layer and expert: routed assignments, dropped assignments, sum of probabilities.
// - If there are indexers: the sum of their losses. With multi-token prediction: the sum of its
//   cross-entropies over tokens and modules.
// - Then three losses: sum of cross-entropies over tokens, load balancing, all z-losses.
//
// statistics: statistics of this rank. output_z_loss: this rank's term of the output z-loss.
std::vector<double> step_sums(const Statistics& statistics, double output_z_loss);

// Returns the error text of a step whose loss or gradient norm is not finite.
std::string not_finite_text(const StepMetrics& m);
// Returns the warning about a skipped step.
std::string skipped_text(const StepResult& result, const NormHistory& norms, Index max_skipped);
// Thrown on all ranks if the loss or the gradient norm is not finite, or if too many steps in a row
// were skipped.
struct Diverged : CollectiveError {
  using CollectiveError::CollectiveError;
};

// Runs one step after another, without files or signals. Tests and benchmarks use it directly.
class Trainer {
 public:
  // The engine must be one for training. Both arguments must outlive this object.
  Trainer(Engine& engine, const SampleStream& samples);

  // Trains on the next global batch. The loss is the mean over its targets that are not -1.
  // Collective. Throws CollectiveError if all are -1. Throws Diverged on every rank if the loss or
  // the gradient norm is not finite. steps_done() then stays. If the norm is not finite, the
  // parameters stay too; if only the loss is not finite, they have changed.
  // With train.spike_sigma, such a norm or an outlier skips the update instead. Diverged is then
  // thrown after more than train.max_skipped skipped steps in a row.
  // Throws CollectiveError if ranks hold different copies of a value (run.check_every), or if owned
  // values changed since the step before (run.memory_check).
  StepResult step();
  // Compares the values that several ranks hold, and throws CollectiveError if they differ.
  // Collective.
  void check_replicas();
  // Compares the weights and the optimizer state that this rank owns with their digests
  // (run.memory_check), and throws CollectiveError if any differ on some rank. Collective.
  void check_memory();
  // Lets the next steps measure the gradient norm of each parameter, or not.
  void measure_params(bool measures) { measures_params_ = measures; }
  // Returns the norms of the last step that measured them, of all trained parameters in order.
  std::vector<ParamNorm> param_norms() const;

  Index steps_done() const { return step_; }
  Index samples_done() const { return samples_done_; }
  Index tokens_done() const { return tokens_done_; }
  // Sets the number of steps, samples and tokens after which training continues. Loads no weights.
  void set_progress(Index step, Index samples, Index tokens) {
    step_ = step;
    samples_done_ = samples;
    tokens_done_ = tokens;
  }
  // Gradient norms of the past updates.
  const NormHistory& norms() const { return norms_; }
  void set_norms(const NormHistory& norms) { norms_ = norms; }
  // Lets the learning rate rise from 0 again after this step (train.rewarmup); -1: it does not.
  void set_rewarmup(Index after_step) { rewarmup_after_ = after_step; }

 private:
  // Numbers of tokens that are not padding, of the decoder and of an encoder, and of targets that
  // the loss counts, in the global batch.
  struct StepCounts {
    Index tokens, encoder_tokens, targets;
  };
  // Counts the batch, of which `batch` is this rank's share. Collective. Throws CollectiveError if
  // no loss counts any target.
  StepCounts count_step(const SampleBatch& batch) const;
  bool checks_memory() const { return engine_.config().run.memory_check == MemoryCheck::digest; }
  void update_router_bias(const StepResult& result);
  // Adds the norm of this step to the history. Throws Diverged if too many steps were skipped.
  // Collective.
  void record_norm(const StepResult& result);
  // Names the parameter that is the likely cause of a norm that is not finite or too large.
  // Collective. param_norms() must be those of this step.
  std::string suspect() const;
  // Parts of check_replicas: before the update, after it, and at any time. Collective.
  void check_inputs(const SampleBatch& batch);
  void check_update();
  std::string state_difference();

  Engine& engine_;
  const SampleStream& samples_;
  DistributedOptimizer optimizer_;
  bool measures_params_ = false;  // measure_params()
  NormHistory norms_;
  Index step_ = 0, samples_done_ = 0, tokens_done_ = 0, rewarmup_after_ = -1;
};

// Options of `switchyard train`.
struct RunOptions {
  // Prints only the last step, the line `performance:`, warnings and errors.
  bool quiet = false;
  bool dry_run = false;  // checks and describes the training, and writes nothing
  int ranks = 0;         // of a dry run; 0 means those of the world
  MachinePeak peak;      // of the machine of run.machine
  Json provenance = {};  // record of this call (src/provenance/provenance.h); may be null
  // The machine of a dry run: its name, and a function that returns a rank's memory needs there.
  // Empty if it is this machine. machine_memory throws InputError if the machine has less memory
  // for a rank. vocab: rows of the embedding.
  std::string machine;
  std::function<MemoryPlan(Index vocab)> machine_memory;
};

// Throws InputError if run.dir is not set.
void check_run_dir(const Config& config);

// Runs `switchyard train` on all ranks of `world`: everything around the steps. Returns the exit
// code. Collective. Throws CollectiveError if all ranks fail together. If one rank fails alone
// while it trains, aborts all ranks (abort_job_on_error).
int run_training(Comm& world, const Config& requested, const RunOptions& options);

}  // namespace sy
