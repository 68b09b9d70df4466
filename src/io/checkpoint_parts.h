// The parts that saving and loading are made of. None of them knows a communicator: one process can write the
// shards of all ranks, one after the other.
#pragma once

#include <filesystem>
#include <vector>

#include "src/io/checkpoint.h"
#include "src/io/hdf5.h"

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

// The parts of parameters that a rank writes: its ZeRO-1 ranges, without what a lower rank holds as well (kv
// heads where kv_heads < tp). Over all ranks, every element of every parameter occurs exactly once. Points
// into `flat`.
std::vector<OwnedRun> shard_runs(const FlatLayout& flat, const Layout& layout, const Coord& coord);

// The boxes of the whole tensor that a run covers, in the run's order.
std::vector<Box> global_boxes(const Placement& placement, Range local);

// A new file with the runs of one rank. Throws Failure.
void write_shard(const std::filesystem::path& path, const TrainState& state, const ParamStore& store, int rank);

// A new file that shows the shards of all ranks as whole tensors, and holds the state. Throws Failure.
void write_index(const std::filesystem::path& path, const TrainState& state, const std::vector<ParamSpec>& specs,
                 const Layout& layout);

// Deletes checkpoints older than `step` but for the newest keep - 1. Returns what could not be deleted.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& checkpoints, Index step, Index keep);

// Opens index.h5 after a look at the sizes of all files: libhdf5 may crash on one that is cut off.
Hdf5File open_index(const std::filesystem::path& step_dir);

// Where host and device exchange a tensor, piece by piece.
constexpr Index piece_elements = Index{1} << 22;

}  // namespace sy
