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
  // from the copy of the values until poll() or finish() returned the checkpoint
  double seconds;
  std::vector<std::string> warnings;  // on rank 0: one for each folder that could not be deleted
};

// Returns the checkpoints that stay when `saved` is committed. poll() or finish() calls it on rank
// 0 before the commit. If it throws, the save fails on all ranks.
using RetentionPolicy = std::function<Retention(const TrainState& saved)>;

// Writes one checkpoint at a time. If asynchronous, start() copies the values of this rank to host
// memory, and one thread per rank writes them. Otherwise finish() writes. The ranks agree only in
// the calls below, which the training thread makes between steps.
//
// All calls are collective over `world`, unless they say otherwise. If one fails on any rank, all
// ranks throw CollectiveError. Unfinished folders are then deleted, and older checkpoints stay. A
// new checkpoint that has its final name already stays, too.
class CheckpointSaver {
 public:
  // world: must outlive this object.
  // before_commit: called on rank 0 before the commit. If asynchronous, the writer thread calls it.
  // It may throw.
  CheckpointSaver(Comm& world, std::filesystem::path run_dir, bool asynchronous,
                  std::function<void()> before_commit = {});
  // Waits for the writer thread. Not collective. If the commit has begun, it is completed.
  // Otherwise the save is not committed, and the next save deletes its folder.
  ~CheckpointSaver();

  // Starts to save RUN/checkpoints/step-N. No save may be in progress. A value that is not finite
  // is an error, before anything is written. The specs and the layout of `store` must stay until
  // the save is finished, and if `asynchronous` is false, its values must stay, too.
  void start(const TrainState& state, ParamStore& store);
  // Not collective.
  bool in_progress() const { return save_ != nullptr; }
  // Continues with the save if all ranks have written their files. If one has failed, waits for the
  // others and throws. Returns the checkpoint once it is committed, otherwise empty. Call it after
  // each step. If not `asynchronous`, only finish() continues.
  std::optional<SavedCheckpoint> poll(const RetentionPolicy& retention);
  // Waits until the checkpoint is committed. A save must be in progress.
  SavedCheckpoint finish(const RetentionPolicy& retention);

  // Starts to save the values that contents.read() returns. It must throw if a value is not finite.
  // Nothing is copied: if `asynchronous`, the writer thread calls it. The references of `contents`
  // must stay valid until the save is finished.
  void start(const TrainState& state, const ShardContents& contents);

 private:
  struct Save;
  void make_folder();
  void gather_mappings();
  // Forgets the save. On rank 0, deletes its folder unless it is committed.
  void abandon();
  // Waits for the writer of this phase on all ranks, then begins the next one. Returns the
  // checkpoint after the last one.
  std::optional<SavedCheckpoint> advance(const RetentionPolicy& retention);

  Comm& world_;
  const std::filesystem::path run_dir_;
  const bool asynchronous_;
  const std::function<void()> before_commit_;
  std::unique_ptr<float[]> copy_;  // of the values of this rank's shard
  Index copy_elements_ = 0;
  std::unique_ptr<Save> save_;  // nullptr if no save is in progress
};

}  // namespace sy
