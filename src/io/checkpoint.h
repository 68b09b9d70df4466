// Checkpoints: RUN/checkpoints/step-00000200/{index.h5, shard-00000.h5 ..., manifest.json}.
//
// Each rank writes its own shard with the serial HDF5 library. The shard holds the ZeRO-1 ranges
// that the rank owns, of weights, m and v alike, so nothing is written twice. Its dataset
// `/params/<name>` (and `/optimizer/{m,v}/<name>`) is the flat range of that parameter. The file
// index.h5 shows every tensor under its name and global shape, as a virtual dataset over the shards
// (fill value NaN).
// It also has /state, /experts and /router/bias.
//
// A save is atomic. Files are written to step-N.tmp, with their SHA-256 digests in manifest.json.
// Every file is synced, read back and compared with the written values. Then the folder is renamed.
// All ranks agree on the status after every step of the protocol. A reader verifies digests before
// HDF5 opens a file.
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
  std::string config;  // resolved configuration, INI
  Index vocab = 0;
  std::string dataset;           // absolute path of the data set's folder
  std::string dataset_digest;    // Dataset::digest(); empty in old checkpoints
  std::string tokenizer;         // to_text of run_tokenizer.h: "bytes SHA256"; empty if unknown
  std::string unicode_versions;  // Dataset::unicode_versions(); empty if unknown
  std::string layout;            // "dp 4 tp 1 ep 2 etp 1", for information only
  ExpertHistory experts;
  std::vector<float> router_bias;  // [layer, expert]; empty if unused
  ValidationRecord validation;     // empty in old checkpoints
};

// The checkpoints of a run that stay when a new one is written.
struct Retention {
  Index keep = 0;               // number of the newest ones, the new one included; 0 means all
  Index keep_every = 0;         // steps that are multiples of it stay too; 0 means no step
  std::set<Index> pinned = {};  // these steps stay too
};

// Writes RUN/checkpoints/step-N, then deletes older checkpoints. Collective over `world`.
// - retention: that of rank 0 counts
// - Deletes only files that this program wrote. A checkpoint with other files stays.
// - Throws AgreedError on all ranks if one fails. Older checkpoints then stay. A value that is not
//   finite is such a failure, before anything is written.
// - Returns on rank 0 one warning for each checkpoint that could not be deleted.
std::vector<std::string> save_checkpoint(Comm& world, const std::filesystem::path& run_dir, const TrainState& state,
                                         const ParamStore& store, const Retention& retention);

// Writes a checkpoint of weights without optimizer state. Training can start from it
// (run.init_from), but cannot resume it.
// - source: read chunk by chunk; the ranks share the work equally
// - progress: called on every rank with the number of elements that it has written, and its total
void save_weights(Comm& world, const std::filesystem::path& run_dir, const TrainState& state,
                  const std::vector<ParamSpec>& specs, ValueSource& source,
                  const std::function<void(Index done, Index total)>& progress);

// Returns the folder of a whole checkpoint: `step_or_run` itself, or the newest one of a run
// folder. `warnings` names checkpoints that do not verify, and foreign files; both are skipped.
// Throws InputError if there is no whole checkpoint.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& step_or_run, std::vector<std::string>* warnings);
// Does the same on rank 0, and returns its result or its error on all ranks. Collective. Only rank
// 0 gets `warnings`.
std::filesystem::path resolve_checkpoint(Comm& world, const std::filesystem::path& step_or_run,
                                         std::vector<std::string>* warnings);

// Returns whether a checkpoint that this process chose as a run's newest has been deleted since the
// last call. If so, reading it failed for that reason.
bool chosen_checkpoint_vanished();

// Returns the checkpoint from which a run resumes; an empty path if the run has no checkpoint yet.
// This is the checkpoint of `step`; if -1, the newest that is whole and has only finite values.
// Throws InputError if no existing checkpoint is usable. Collective. Only rank 0 gets `warnings`.
std::filesystem::path resume_checkpoint(Comm& world, const std::filesystem::path& run_dir, Index step,
                                        std::vector<std::string>* warnings);
// Return the newest checkpoint of a run before `step`, and the oldest one; -1 if there is none.
Index newest_before(const std::filesystem::path& checkpoints, Index step);
Index oldest_checkpoint(const std::filesystem::path& checkpoints);
// Renames the checkpoints of a run after `step` to step-N.abandoned, because the run went back to
// `step`. Returns a message for each. Throws Failure.
std::vector<std::string> set_newer_aside(const std::filesystem::path& run_dir, Index step);

// Returns the problems of a step folder: digests, missing files, the name of another step. Empty if
// there are none. Reads every byte. `warnings` gets foreign files, which nothing reads.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& step_dir,
                                           std::vector<std::string>* warnings = nullptr);

// Returns problems: files that the index of a whole checkpoint maps, but that are not in its
// manifest. Every reader refuses them.
std::vector<std::string> foreign_parts(const std::filesystem::path& step_dir);

// The next functions read a folder that resolve_checkpoint returned. They only check file sizes.

// Throws AgreedError unless all ranks see the same manifest.json there. Collective.
void check_same_checkpoint(Comm& world, const std::filesystem::path& step_dir);

// Reads the state alone. Throws InputError if it has numbers that training cannot write.
TrainState read_state(const std::filesystem::path& step_dir);

// Throws InputError if the checkpoint has other parameters, naming those that differ, or if its
// files are smaller than its parameters. Call it before allocating a model that a file describes.
void check_parameters(const std::filesystem::path& step_dir, const std::vector<ParamSpec>& specs);

enum class Load { all, weights };
// Returns the weights of a checkpoint as a value source. It keeps the files open.
std::unique_ptr<ValueSource> checkpoint_weights(const std::filesystem::path& step_dir);
// Reads the parts of the tensors that this rank's store owns, whatever layout wrote them. Reads
// optimizer state too if the store has it, unless what = Load::weights. Throws InputError as
// check_parameters does, if a shard cannot be read, or if a value is not finite.
void load_checkpoint(const std::filesystem::path& step_dir, ParamStore& store, Load what = Load::all);

// Whole tensors of a checkpoint, for inspect, diff and analysis.
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
  // Reads elements [run.begin, run.end) of the row-major order, in the tensor's own type.
  void read(const std::string& name, Range run, void* data) const;
  // Reads the same elements, converted to double.
  std::vector<double> values(const std::string& name, Range run) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct TensorStatistics {
  double min = 0, max = 0, mean = 0, rms = 0;
  Index nans = 0;  // not included in the other statistics
};
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
