// Checkpoints: RUN/checkpoints/step-00000200/{index.h5, shard-00000.h5 ..., manifest.json}.
//
// Each rank writes its own shard with the serial HDF5 library: of every gradient group the ZeRO-1 range that it owns,
// of weights, m and v alike, so nothing is written twice. Within a shard, dataset `/params/<name>` (and
// `/optimizer/{m,v}/<name>`) is the flat run of that parameter. index.h5 shows every tensor whole, under its name and
// global shape, as a virtual dataset over the shards (fill value NaN), plus /state, /experts and /router/bias.
//
// Committed atomically: written to step-N.tmp, SHA-256 digests in manifest.json, every file and folder
// fsynced, every file read back and compared with what was written to it, renamed. After every step of the protocol
// all ranks agree on its status. A reader verifies digests before HDF5 opens a file.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "src/io/expert_history.h"
#include "src/io/validation_record.h"
#include "src/params/store.h"
#include "src/params/values.h"

namespace sy {

struct TrainState {
  Index step = 0, tokens = 0, samples = 0;
  std::uint64_t seed = 0;
  std::string config;  // the resolved configuration, INI
  Index vocab = 0;
  std::string dataset;           // absolute path of the data set's folder
  std::string dataset_digest;    // Dataset::digest(); empty in checkpoints from before there was one
  std::string tokenizer;         // to_text of run_tokenizer.h: "bytes SHA256"; empty if it is not known
  std::string unicode_versions;  // Dataset::unicode_versions(); empty if they are not known
  std::string layout;            // "dp 4 tp 1 ep 2 etp 1", informative
  ExpertHistory experts;
  std::vector<float> router_bias;  // [layer, expert], empty when unused
  ValidationRecord validation;     // empty in checkpoints from before there was one
};

// The checkpoints of a run that stay when a new one is written.
struct Retention {
  Index keep = 0;               // number of the newest ones, the new one included; 0 means all
  Index keep_every = 0;         // those of steps that are multiples of it stay, too; 0 means no step
  std::set<Index> pinned = {};  // those of these steps stay, too
};

// Collective over `world`. Writes RUN/checkpoints/step-N, then deletes older ones as `retention` of
// rank 0 says. Only files that this program wrote are deleted, and a checkpoint whose folder holds
// others stays as it is. A failure on any rank throws AgreedError on all and leaves older
// checkpoints alone; a value that is not finite is one, before anything is written. Returns, on rank
// 0, what was not deleted, and why: no reason to stop.
std::vector<std::string> save_checkpoint(Comm& world, const std::filesystem::path& run_dir, const TrainState& state,
                                         const ParamStore& store, const Retention& retention);

// The same of weights alone, without an optimizer's state, which no rank holds: they are read from `source` piece by piece and
// written. The ranks share the work equally. Training starts from such a checkpoint (run.init_from); it cannot be resumed.
// progress: called on every rank with the elements that it has written, and those that it is to write.
void save_weights(Comm& world, const std::filesystem::path& run_dir, const TrainState& state,
                  const std::vector<ParamSpec>& specs, ValueSource& source,
                  const std::function<void(Index done, Index total)>& progress);

// Step folder, or run folder: its newest whole checkpoint (those that do not verify are named in `warnings`
// and passed over, and so are files that are not ours). Throws InputError when there is none.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& step_or_run, std::vector<std::string>* warnings);
// The same, collective: rank 0 reads the files, and all ranks get its answer or its error. `warnings` on rank
// 0 alone.
std::filesystem::path resolve_checkpoint(Comm& world, const std::filesystem::path& step_or_run,
                                         std::vector<std::string>* warnings);

// Whether a checkpoint that this process chose as a run's newest, since it was last asked, has been
// deleted meanwhile: what was read of it failed for that reason.
bool chosen_checkpoint_vanished();

// The checkpoint that a run goes on from: that of `step`, or with -1 the newest one that is whole and holds finite values
// alone; an empty path where the run has no checkpoint yet. Throws InputError where there are some and none will do.
// Collective; `warnings` on rank 0 alone.
std::filesystem::path resume_checkpoint(Comm& world, const std::filesystem::path& run_dir, Index step,
                                        std::vector<std::string>* warnings);
// The newest checkpoint of a run that is older than `step`, and the oldest of all; -1: there is
// none.
Index newest_before(const std::filesystem::path& checkpoints, Index step);
Index oldest_checkpoint(const std::filesystem::path& checkpoints);
// Renames the checkpoints of a run that are newer than `step`, so that they are not taken for those of a run that went back
// to it: step-N.abandoned. Returns what was done, for people. Throws Failure.
std::vector<std::string> set_newer_aside(const std::filesystem::path& run_dir, Index step);

// What is wrong with a step folder: digests, missing files, a name of another step. Empty: nothing. Reads every byte.
// `warnings`: files that do not belong to it, which nothing reads.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& step_dir,
                                           std::vector<std::string>* warnings = nullptr);

// Files that the index of a whole checkpoint takes values from though they are not in its manifest:
// every reader refuses them.
std::vector<std::string> foreign_parts(const std::filesystem::path& step_dir);

// What follows reads a folder that resolve_checkpoint has returned; only the files' sizes are compared again.

// Throws AgreedError unless all ranks see the same manifest.json there. Collective.
void check_same_checkpoint(Comm& world, const std::filesystem::path& step_dir);

// Reads the state alone, and sees that its numbers are some that training can write.
TrainState read_state(const std::filesystem::path& step_dir);

// Throws InputError when the parameters are not the checkpoint's, naming those that differ, or when its files are smaller
// than they: to be asked before memory is taken for a model that a file describes.
void check_parameters(const std::filesystem::path& step_dir, const std::vector<ParamSpec>& specs);

// Reads the boxes and ranges that this rank's store owns, whatever layout wrote them; optimizer state too where the store
// has it and not the weights alone are asked for. Throws InputError as check_parameters does, when a shard cannot be read,
// and when a value is not finite.
enum class Load { all, weights };
// The weights of a checkpoint, for who takes values from any source. It must stay as long as they are read.
std::unique_ptr<ValueSource> checkpoint_weights(const std::filesystem::path& step_dir);
void load_checkpoint(const std::filesystem::path& step_dir, ParamStore& store, Load what = Load::all);

// The tensors of a checkpoint, whole, for inspect, diff and analysis.
struct TensorInfo {
  std::string name;  // "/params/...", "/optimizer/m/...", "/experts/...", "/router/bias"
  DType dtype;
  Shape shape;
  Index bytes() const { return shape.elements() * size_of(dtype); }
};
class CheckpointTensors {
 public:
  explicit CheckpointTensors(const std::filesystem::path& step_dir);
  ~CheckpointTensors();
  const std::vector<TensorInfo>& list() const;  // in the order of the parameters
  const TensorInfo* find(const std::string& name) const;
  // Elements [run.begin, run.end) of the row-major order, as the tensor's own type.
  void read(const std::string& name, Range run, void* data) const;
  // The same, converted.
  std::vector<double> values(const std::string& name, Range run) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct TensorStatistics {
  double min = 0, max = 0, mean = 0, rms = 0;
  Index nans = 0;  // left out of the others
};
TensorStatistics statistics(const CheckpointTensors& tensors, const std::string& name);

struct TensorDifference {
  std::string name;
  double max_abs = 0;  // NaN where one side is NaN and the other is not, or where they cannot be compared
  bool bitwise_equal = true;
  std::string note;  // "only in the first", "[4, 2] against [4, 3]"
};
// Every tensor of either checkpoint, in bounded memory.
std::vector<TensorDifference> diff_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace sy
