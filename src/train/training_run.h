// A training run in its folder: the start or resume, the loop over steps, checkpoints and their
// retention.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/data/dataset.h"
#include "src/evaluate/evaluate.h"
#include "src/io/checkpoint_saver.h"
#include "src/io/lock.h"
#include "src/train/device_reservation.h"
#include "src/train/history.h"
#include "src/train/stop.h"
#include "src/train/time_limit.h"
#include "src/train/trainer.h"

namespace sy {

// One start of `switchyard train`, after its configuration, layout and memory are checked.
class TrainingRun {
 public:
  // Allocates the engine. world: must outlive this object.
  TrainingRun(Comm& world, const Config& config, const RunOptions& options, const Layout& layout, Dataset dataset,
              std::unique_ptr<Device> device, DeviceReservation reservation);
  // Trains. Returns the exit code: 0, or stopped_exit_code if a signal or run.max_hours stopped it.
  // Throws CollectiveError if all ranks fail together. Collective.
  int execute();

 private:
  bool is_first_rank() const { return world_.rank() == 0; }
  // Prints a text. No-op on other ranks than the first.
  void print(const std::string& text);
  // Prints a warning the first time that it is called with this text. A save may warn as an earlier
  // one did.
  void warn_once(const std::string& text);
  // Prints warnings on this rank.
  void print(const std::vector<std::string>& warnings);

  // ---- the start of a run: training_run_start.cpp ----
  // Makes the folder and locks it, so that no other run uses it. No-op on other ranks than the
  // first. Throws Error if another run has it, or if it cannot be written.
  void lock_folder();
  // Starts a new run folder, or continues one and returns true. Also sets the weights and the state
  // of training. Overwrites nothing of an older run. Throws CollectiveError. Collective.
  bool prepare_folder();
  // Appends the record of this start to RUN/provenance.jsonl. On the first rank.
  void record_start() const;
  // Copies the tokenizer to the run folder. `from`: the checkpoint that training starts from; empty
  // if there is none. If that run has a copy of the same tokenizer, it is preferred, since it has
  // more companion files.
  void store_own_tokenizer(const std::filesystem::path& from) const;
  // Compares the tokenizer of the data with that of the checkpoint that training starts from, on
  // rank 0.
  void check_data(const std::filesystem::path& checkpoint, const TrainState& saved_state);
  // Weights that each rank reads of a checkpoint.
  static constexpr WeightRanges read_ranges = WeightRanges::owned;
  // Returns the function that names the shards which load() or start_from() reads.
  NeededShards shards_to_read(Load what);
  // Continues the run from one of its checkpoints.
  void load(const CheckpointFolder& checkpoint);
  // Starts from another run's weights; all other state is new.
  void start_from(const CheckpointFolder& checkpoint);
  // Throws InputError if the checkpoint is of another model or of other data.
  void check_same_model(const CheckpointFolder& checkpoint);
  // Throws InputError if the hashes of attention would be others. before: of the checkpoint
  void check_hash_seed(const std::filesystem::path& checkpoint, const Config& before) const;
  // Prints the warning of check_data.
  void warn_of_data() const;

  // ---- run.replay_step: training_run_replay.cpp ----
  // Repeats one step with a trace. Returns the exit code. Collective.
  int replay();
  // Loads the newest checkpoint before a step, or sets the initial weights as a new run does.
  // Returns the checkpoint's folder; empty if there is none. Collective.
  std::filesystem::path load_before(Index step);
  // Writes RUN/replay/step-N/step.json, and prints a summary. On the first rank.
  // start: the origin of the weights. error: of the step; empty if it did not diverge.
  void write_replay(const std::filesystem::path& folder, const std::string& start, const StepResult& result,
                    const std::string& error, std::vector<ParamNorm> norms);

  // ---- the loop over steps: training_run.cpp ----
  int train();
  // Prints warnings, and describes the coming training.
  void announce();
  // Result of a validation.
  struct ValidationOutcome {
    bool is_best = false;  // its loss is among the run.keep_best lowest
    bool stop_early = false;
  };
  // The first rank decides, and all ranks get its result. Collective if there are scores.
  ValidationOutcome record_validation(Index step, const std::vector<DomainScore>& scores);
  // Returns true if the last train.patience validations have not lowered the loss. On the first
  // rank.
  bool out_of_patience() const;
  // Returns true if a validation loss has reached train.target_loss. On the first rank.
  bool reached_target() const;
  std::string early_stop_text() const;

  // Runs a step. If it diverges, the error names the checkpoint to go back to.
  StepResult step_or_advice();
  // Returns the newest checkpoint whose weights gave the loss of a step before the rise. If there
  // is none, returns the newest one before the rise; -1 if there is none or no rise. On the first
  // rank.
  Index checkpoint_before_rise() const;
  // The checkpoints to keep when `saved` is committed. A validation that has become the best since
  // then displaces no checkpoint: its own is not on the disk yet. On the first rank.
  Retention retention(const TrainState& saved);
  // Returns the step of the checkpoint that the losses protect, whatever run.keep says; -1 if none.
  // Warns once about it. On the first rank.
  Index checkpoint_before_trouble();

  // Number of windows of a validation, over all domains.
  Index validation_windows() const;
  // The enabled sinks, and the layers and domains that they may get.
  MetricsSinks sinks() const;
  // Returns the scores on the validation text after this step. Empty if the step has no validation.
  // Collective.
  std::vector<DomainScore> validate(Index step);
  // Reason to stop because of run.max_hours. It is greater than the number of any signal.
  static constexpr int time_is_over = 1 << 20;
  // Returns time_is_over if the first rank must stop by its clock. Otherwise returns a signal that
  // asked any rank to stop; 0 if there was none.
  // Collective.
  int stop_reason_everywhere() {
    const bool over = is_first_rank() && time_limit_.must_stop(program_seconds());
    return static_cast<int>(world_.max(over ? time_is_over : stop_signal()));
  }
  // Starts to write a checkpoint, after the one before is committed. Collective.
  void save();
  // Fails if the folder is not this run's any more. On the first rank.
  void check_lock() const;
  // Continues with the save in progress, if any: until it is committed, or without a wait. Prints
  // its result. Collective.
  void advance_save(bool waits);
  // Prints the path of the result and possible next commands. first: the first step of this start.
  void report_end(Index first);
  // The most memory that this rank has had.
  MemoryPeak memory_peak();

  Comm& world_;
  RunOptions options_;
  Config config_;
  std::filesystem::path dir_;
  Dataset dataset_;
  SampleStream samples_;
  Engine engine_;
  Trainer trainer_;
  TrainState state_;
  TimeLimit time_limit_{config_.run.max_hours};
  // Warning of check_data(). It is printed after loading, so that it does not accompany an error.
  std::string data_warning_;
  HistoryWindow window_;
  // On the first rank:
  std::unique_ptr<MetricsFile> metrics_;
  LossRise rise_;
  RecentSkips skips_;
  bool losses_known_ = true;  // false: metrics.jsonl lacks LossRise::window losses or more in a row
  std::set<std::string> warned_;
  // Why the MFU is unknown; empty if it is known.
  const std::string mfu_problem_ = mfu_problem(options_.peak, engine_.device().name(), config_.dtype());
  // Times of this start. Training waited for saves during save_seconds_.
  double validation_seconds_ = 0, save_seconds_ = 0;
  double reported_save_seconds_ = 0;  // of them, in the lines of metrics.jsonl
  ProgressLine progress_{config_.train.steps, config_.run.log_every};
  std::optional<FolderLock> lock_;  // on the first rank
  const Index library_bytes_;
  // A checkpoint counts only with the lines of its steps.
  CheckpointSaver saver_{world_, dir_, config_.run.async_checkpoint, [this] { metrics_->sync(); }};
};

}  // namespace sy
