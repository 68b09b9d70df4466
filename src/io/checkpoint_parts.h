// The parts that saving and loading are made of. None of them knows a communicator: one process can write the
// shards of all ranks, one after the other.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/io/checkpoint.h"
#include "src/io/digest.h"
#include "src/io/hdf5.h"
#include "src/io/manifest.h"
#include "src/params/values.h"

namespace sy {

// The tensors that a checkpoint keeps for every parameter: one row each.
// All are f32: of a model that computes in bf16, /params holds the values that its weights are rounded from.
struct TensorKind {
  const char* prefix;                   // of the dataset's name; the parameter's follows
  Tensor ParamStore::Buffers::*buffer;  // of the ZeRO-1 range; none: the parameter's values
  const char* meaning;
};
inline const TensorKind tensor_kinds[] = {
    {"/params/", nullptr, "weights"},
    {"/optimizer/m/", &ParamStore::Buffers::m, "running mean of the gradient"},
    {"/optimizer/v/", &ParamStore::Buffers::v, "running mean of the squared gradient"},
};

// The attribute of /state that says that all values were looked at. Older checkpoints lack it.
constexpr const char* finite_mark = "finite";

// The parts of parameters that a rank writes: its ZeRO-1 ranges, without what a lower rank holds as well (kv
// heads where kv_heads < tp). Over all ranks, every element of every parameter occurs exactly once. Points
// into `flat`.
std::vector<OwnedRun> shard_runs(const FlatLayout& flat, const Layout& layout, const Coord& coord);

inline bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}
// The first tensor that holds a value which is not finite, the counts of experts left out; "" where none does. Reads all.
std::string first_not_finite(const CheckpointTensors& tensors);
// The same for what this rank would write of its store.
std::string first_not_finite(const ParamStore& store, int rank);

// What a rank's shard is made of.
struct ShardContents {
  const std::vector<ParamSpec>& specs;
  const Layout& layout;
  const FlatLayout& flat;  // of this rank
  std::span<const TensorKind> kinds;
  // values = elements [begin, begin + values.size()) of the run, of this kind.
  std::function<void(const TensorKind& kind, const OwnedRun& run, Index begin, std::span<float> values)> read;
};
ShardContents contents_of(const ParamStore& store);

// A file as the manifest has it.
struct WrittenFile {
  Index bytes;
  Digest sha256;
};

// A new file with the runs of one rank. On the disk, and compared with the values that it was made from, when this returns.
// Throws Failure.
WrittenFile write_shard(const std::filesystem::path& path, const TrainState& state, const ShardContents& contents,
                        int rank);

// The same of a new file that shows the shards of all ranks as whole tensors, and holds the state.
WrittenFile write_index(const std::filesystem::path& path, const TrainState& state, const std::vector<ParamSpec>& specs,
                        const Layout& layout, std::span<const TensorKind> kinds = tensor_kinds);

// The step of a checkpoint that set_newer_aside has renamed; of another name, none.
std::optional<Index> step_set_aside(const std::string& name);

// Deletes checkpoints older than `step` but for the newest keep - 1 and that of step `pinned`, and
// what was set aside and is older than all that stay. Returns what was not deleted, and why.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& checkpoints, Index step, Index keep,
                                           Index pinned = -1);
// Deletes what saving or pruning left when it was cut off: the files of folders such as step-N.tmp.
// Returns what else they hold. Throws Failure.
std::vector<std::string> remove_leftovers(const std::filesystem::path& checkpoints);
// step-N.tmp, or step-N.tmp-2 and so on: a folder that is being written or deleted. The first
// number that is free.
std::filesystem::path unfinished_path(const std::filesystem::path& checkpoints, Index step, Index number);
Index free_number(const std::filesystem::path& checkpoints, Index step);

// The files of a checkpoint, opened after a look at all their sizes: libhdf5 may crash on one that is cut off.
//
// A whole tensor is put together here, from the shards that index.h5 names. The library could do that too, as it does for
// other tools, but it shows what it cannot open as NaN, opens all shards at once, and follows a forged file anywhere. Here
// the shards are files of the manifest, few are open at a time, and whatever cannot be read is an error.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& step_dir);
  const Manifest& manifest() const { return manifest_; }
  const Hdf5File& index() const { return index_; }
  // Of a dataset of the index: as Hdf5Dataset::read, but of virtual ones too.
  void read(const Hdf5Dataset& tensor, const Box& box, void* data);
  void read(const Hdf5Dataset& tensor, Range run, void* data);

 private:
  const Hdf5File& shard(const std::string& file);

  std::filesystem::path dir_;
  Manifest manifest_;
  Hdf5File index_;
  std::list<std::pair<std::string, Hdf5File>> shards_;  // that are open, the latest first
};

}  // namespace sy
