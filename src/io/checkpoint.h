// Checkpoints of a run: RUN/checkpoints/step-00000200, which any layout can read.
//
// Each rank writes one shard: the ZeRO-1 ranges of weights and optimizer state that it owns. Rank 0
// writes the index, which maps the shards to whole tensors and holds the training state. It also
// writes manifest.json. A reader verifies digests before it opens a file. The commit protocol makes
// a save atomic (docs/design/checkpoints.md). src/io/format is the interface of the file format.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "src/io/checkpoint_folder.h"
#include "src/io/expert_history.h"
#include "src/io/format/checkpoint_format.h"
#include "src/io/norm_history.h"
#include "src/io/validation_record.h"
#include "src/params/store.h"
#include "src/params/values.h"

namespace sy {

struct TrainState {
  Index step = 0, tokens = 0, samples = 0;
  std::uint64_t seed = 0;
  std::string config;  // resolved configuration, INI
  Index vocab = 0;
  std::string dataset;           // absolute path of the data set's folder
  std::string dataset_digest;    // Dataset::digest(); empty in old checkpoints
  std::string tokenizer;         // to_text of run_tokenizer.h: "bytes SHA256"; empty if unknown
  std::string unicode_versions;  // Dataset::unicode_versions(); empty if unknown
  std::string provenance;        // JSON of src/provenance/provenance.h; empty in old checkpoints
  std::string layout;            // "dp 4 tp 1 ep 2 etp 1", for information only
  ExpertHistory experts;
  std::vector<float> router_bias;  // [MoE layer, expert]; empty if unused
  // Running averages of batch norms: [batch_norms, mean and variance, d_model].
  std::vector<float> batch_norm_averages;
  Index batch_norms = 0;
  ValidationRecord validation;  // empty in old checkpoints
  NormHistory norms;            // empty in old checkpoints, and without train.spike_sigma
  Index rewarmup_after = -1;    // step after which train.rewarmup began; -1 if it never did
};

// The checkpoints of a run that stay when a new one is written.
struct Retention {
  Index keep = 0;               // number of the newest ones, the new one included; 0 means all
  Index keep_every = 0;         // steps that are multiples of it stay too; 0 means no step
  std::set<Index> pinned = {};  // these steps stay too
};

// Writes RUN/checkpoints/step-N, or replaces it, then deletes older checkpoints. Collective over
// `world`.
// - retention: that of rank 0 counts
// - Deletes only files that this program wrote. A checkpoint with other files stays.
// - Throws CollectiveError on all ranks if one fails. Older checkpoints then stay. A value that is
//   not finite is such a failure, before anything is written.
// - Returns on rank 0 one warning for each folder that could not be deleted; empty on other ranks.
std::vector<std::string> save_checkpoint(Comm& world, const std::filesystem::path& run_dir, const TrainState& state,
                                         ParamStore& store, const Retention& retention);

// Writes a checkpoint of weights without optimizer state. Training can start from it
// (run.init_from), but cannot resume it. Collective. Throws CollectiveError on all ranks if one
// fails. Deletes no older checkpoint.
// - source: read chunk by chunk; the ranks share the work equally. `source` must throw if a value
//   is not finite, because the checkpoint is marked as finite.
// - progress: called on every rank with the number of elements that it has written, and its total
void save_weights(Comm& world, const std::filesystem::path& run_dir, const TrainState& state,
                  const std::vector<ParamSpec>& specs, ValueSource& source,
                  const std::function<void(Index done, Index total)>& progress);

// Returns the folder of a whole checkpoint: `step_or_run` itself, or the newest one of a run
// folder. Reads every byte of the checkpoint (verify_checkpoint). Throws InputError if there is no
// whole one. `warnings` gets the run's newer checkpoints that do not verify, and ignored foreign
// files; it may be nullptr.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& step_or_run, std::vector<std::string>* warnings);
// Returns the names of the shards of a checkpoint that this rank reads. Throws InputError if the
// checkpoint lacks a tensor that the rank needs.
using NeededShards = std::function<std::set<std::string>(const CheckpointFolder& folder)>;
// Resolves a checkpoint in the same way on rank 0. Returns the folder with its head
// (CheckpointFolder::head) on all ranks, or throws the error of rank 0 on all. Collective. Rank 0
// alone gets `warnings`.
// - Each rank verifies every size()-th shard. If `needed` is set, the ranks verify the shards that
//   they need, and compare the sizes of all others. One rank of a machine verifies a shard for all
//   ranks of the machine.
// - If `needed` throws on a rank, or if the values of the checkpoint were not checked
//   (finite_attribute), each rank verifies every size()-th shard. In the first case, loading the
//   checkpoint then fails.
// - Throws DifferentManifests if machines have different manifests.
CheckpointFolder resolve_checkpoint(Comm& world, const std::filesystem::path& step_or_run,
                                    std::vector<std::string>* warnings, const NeededShards& needed = {});

// Returns the step folders of the `count` newest whole checkpoints of a run up to `step_dir`, the
// newest first. Reads every byte of them. Throws InputError on all ranks if there are fewer.
// Collective. Only rank 0 gets `warnings`: the checkpoints between them that do not verify.
std::vector<std::filesystem::path> last_checkpoints(Comm& world, const std::filesystem::path& step_dir, Index count,
                                                    std::vector<std::string>& warnings);

// Returns true if a checkpoint that this process chose as the newest of a run was deleted since.
// Considers the choices since the last call. Call it after a failed read, to know the reason.
bool chosen_checkpoint_vanished();

// Returns the checkpoint from which a run resumes: whole, and with only finite values.
// - step >= 0: the checkpoint of this step
// - step = -1: the newest usable one; a folder with an empty path if the run has no checkpoint yet
// Ranks verify shards as in resolve_checkpoint(world, ...). Collective. Throws CollectiveError on
// all ranks if the checkpoint of this step, or each existing one, is missing or not usable. Only
// rank 0 gets `warnings`.
CheckpointFolder resume_checkpoint(Comm& world, const std::filesystem::path& run_dir, Index step,
                                   std::vector<std::string>* warnings, const NeededShards& needed = {});
// Returns the newest checkpoint before step `end` that is whole, with only finite values; a folder
// with an empty path if there is no checkpoint before this step. Otherwise as resume_checkpoint()
// with step = -1.
CheckpointFolder usable_checkpoint_before(Comm& world, const std::filesystem::path& run_dir, Index end,
                                          std::vector<std::string>* warnings, const NeededShards& needed = {});
// Return the step of the newest checkpoint before `step`, and of the oldest one; -1 if there is
// none. checkpoints: RUN/checkpoints. A folder without manifest.json does not count, nor one that
// cannot be looked up; nothing else is verified.
Index newest_before(const std::filesystem::path& checkpoints, Index step);
Index oldest_checkpoint(const std::filesystem::path& checkpoints);
// Renames the checkpoints of a run after `step` to step-N.abandoned, because the run went back to
// `step`. Returns a message for each. Throws Failure if a folder cannot be renamed.
std::vector<std::string> abandon_newer(const std::filesystem::path& run_dir, Index step);

// Returns the problems of a step folder: digests, missing files, the name of another step. Empty if
// there are none. Reads every byte. Throws nothing for a damaged or missing checkpoint. `warnings`
// gets foreign files, which nothing reads.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& step_dir,
                                           std::vector<std::string>* warnings = nullptr);

// Returns a problem for each file that the index maps, but that manifest.json does not list. Every
// reader refuses such a file. If the checkpoint cannot be opened, returns that error. Call it for a
// whole checkpoint.
std::vector<std::string> unlisted_files(const std::filesystem::path& step_dir);

// The next functions read a folder that resolve_checkpoint returned. They check the sizes of its
// files, not the digests.

// Reads the state alone. Throws InputError if it has numbers that training cannot write.
TrainState read_state(const CheckpointFolder& folder);

// Reads TrainState::provenance alone.
std::string read_provenance(const std::filesystem::path& step_dir);

// Throws InputError if the checkpoint has other parameters, naming those that differ, or if its
// files are smaller than its parameters. Call it before allocating a model that a file describes.
void check_parameters(const CheckpointFolder& folder, const std::vector<ParamSpec>& specs);

enum class Load { all, weights };
// Returns the weights of a checkpoint as a value source. It keeps files open. Its read() throws
// InputError if a value is not finite. If the run trained adapters of LoRA, the weights include
// them.
std::unique_ptr<ValueSource> checkpoint_weights(const CheckpointFolder& folder);
// Returns the means of the weights of several checkpoints of one model, summed in f64.
std::unique_ptr<ValueSource> average_weights(const std::vector<std::filesystem::path>& step_dirs);
// Reads this rank's weights, and its owned ranges of optimizer state. The checkpoint may be of any
// layout. Optimizer state is not read if the store has none or what = Load::weights.
// Then the weights include adapters of LoRA, and adapters of the store stay as they are. Otherwise
// the checkpoint must have the adapters of the store.
// read_state reads the rest. Throws InputError as check_parameters does, if a shard cannot be read,
// if a value is not finite, or if the checkpoint lacks the state of the store's optimizers.
void load_checkpoint(const CheckpointFolder& folder, ParamStore& store, Load what = Load::all,
                     WeightRanges ranges = WeightRanges::local);
// Returns the function that names the shards which load_checkpoint() opens if it has the same
// arguments. The function reads the store's layout, not its values. The store must outlive it.
NeededShards shards_to_load(const ParamStore& store, Load what, WeightRanges ranges);

// Whole tensors of a checkpoint, for inspect, diff and analysis.
class CheckpointTensors {
 public:
  explicit CheckpointTensors(const CheckpointFolder& folder);
  // In the order of the index.
  const std::vector<TensorInfo>& list() const { return list_; }
  const TensorInfo* find(const std::string& name) const;  // nullptr if there is no such tensor
  // Reads the elements `range` of the row-major order, in the tensor's own type.
  void read(const std::string& name, Range range, void* data) const;
  // Reads the same elements, converted to double.
  std::vector<double> values(const std::string& name, Range range) const;

 private:
  std::unique_ptr<CheckpointReader> reader_;
  std::vector<TensorInfo> list_;
  std::map<std::string, std::size_t> by_name_;  // indices in list_
};

struct TensorStatistics {
  double min = 0, max = 0, mean = 0, rms = 0;
  Index nans = 0;  // not included in the other statistics
};
// The tensor must exist.
TensorStatistics statistics(const CheckpointTensors& tensors, const std::string& name);

struct TensorDifference {
  std::string name;
  double max_abs = 0;  // NaN if the tensors cannot be compared, or if one side alone is NaN
  bool bitwise_equal = true;
  std::string note;  // "only in the first", "[4, 2] against [4, 3]"
};
// Compares every tensor of either checkpoint, in bounded memory.
std::vector<TensorDifference> diff_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace sy
