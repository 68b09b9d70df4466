// Saves the checkpoints of a training while it goes on (docs/design/checkpoints.md).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/io/checkpoint.h"

namespace sy {

struct ShardContents;  // src/io/checkpoint_internal.h

// A checkpoint that was committed.
struct SavedCheckpoint {
  Index step;
  double seconds;                     // from start() to the commit
  std::vector<std::string> warnings;  // on rank 0: one for each folder that could not be deleted
};

// Decides at the commit, on rank 0. May throw.
// - returns the checkpoints that stay; called on the training thread
using RetentionNow = std::function<Retention()>;

// Writes one checkpoint at a time.
// With asynchronous = true, start() copies the values of this rank to host memory, and one thread
// per rank writes them. This thread calls no communicator: all agreement of the ranks is in the
// calls below, which the training thread makes between steps. Otherwise finish() writes.
// All calls are collective over `world`, unless they say otherwise. If one fails on any rank, all
// ranks throw CollectiveError. The unfinished checkpoint is then deleted, and no other one is.
class CheckpointSaver {
 public:
  // world: must outlive this object.
  // before_commit: called on rank 0 before the commit, by its writer thread; may throw.
  CheckpointSaver(Comm& world, std::filesystem::path run_dir, bool asynchronous,
                  std::function<void()> before_commit = {});
  // Waits for the writer thread. A save in progress is not committed. Not collective.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Starts to save RUN/checkpoints/step-N. No save may be in progress. A value that is not finite
  // is an error, before anything is written. The specs and the layout of `store` must stay until
  // the save is finished, and if `asynchronous` is false, its values must stay, too.
  void start(const TrainState& state, ParamStore& store);
  // Not collective.
  bool in_progress() const;
  // Continues with the save if all ranks have written their files, without waiting for them.
  // Returns the checkpoint once it is committed. Call it after each step.
  std::optional<SavedCheckpoint> poll(const RetentionNow& retention);
  // Waits until the checkpoint is committed. A save must be in progress.
  SavedCheckpoint finish(const RetentionNow& retention);

  // Starts to save values of another source than a store; see save_weights().
  void start(const TrainState& state, const ShardContents& contents);

 private:
  struct Save;
  void make_folder();
  // Forgets the save. On rank 0, deletes its folder unless it is committed.
  void abandon();
  // Waits for the writer of this phase on all ranks, then begins the next one. Returns the
  // checkpoint after the last one.
  std::optional<SavedCheckpoint> advance(const RetentionNow& retention);
  // Returns this rank's own state: 0 idle, 1 writing, 2 failed.
  Index own_state() const;

  Comm& world_;
  const std::filesystem::path run_dir_;
  const bool asynchronous_;
  const std::function<void()> before_commit_;
  std::unique_ptr<float[]> copy_;  // of the values of this rank's shard
  Index copy_elements_ = 0;
  std::unique_ptr<Save> save_;  // nullptr if no save is in progress
};

}  // namespace sy
