// Checkpoints: RUN/checkpoints/step-00000200/{index.h5, shard-00000.h5 ..., manifest.json}.
//
// Each rank writes its own shard with the serial HDF5 library: of every gradient group the ZeRO-1 range that it owns, of
// weights, m and v alike, so nothing is written twice. Within a shard, dataset `/params/<name>` (and
// `/optimizer/{m,v}/<name>`) is the flat run of that parameter. index.h5 shows every tensor whole, under its name and
// global shape, as a virtual dataset over the shards (fill value NaN), plus /state, /experts and /router/bias.
//
// Committed atomically: written to step-N.tmp, SHA-256 digests in manifest.json, every file and folder fsynced, renamed.
// After every step of the protocol all ranks agree on its status. A reader verifies digests before HDF5 opens a file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "src/params/store.h"

namespace sy {

// Counts of the router's choices. [window][layer][expert], flattened; a window is the steps between two log lines.
struct ExpertHistory {
  Index layers = 0, experts = 0;
  std::vector<std::int64_t> steps;              // [window] the last step of each
  std::vector<std::int64_t> routed, dropped;    // [window, layer, expert] assignments before dropping; those dropped
  std::vector<float> probability;               // [window, layer, expert] mean softmax score
  std::vector<std::int64_t> layer_ids;          // [layer] the block that each MoE layer is in
  Index windows() const { return static_cast<Index>(steps.size()); }
};

struct TrainState {
  Index step = 0, tokens = 0, samples = 0;
  std::uint64_t seed = 0;
  std::string config;          // the resolved configuration, INI
  Index vocab = 0;
  std::string dataset;         // absolute path of the data set's folder
  std::string layout;          // "dp 4 tp 1 ep 2 etp 1", informative
  ExpertHistory experts;
  std::vector<float> router_bias;  // [layer, expert], empty when unused
};

// Collective over `world`. Writes RUN/checkpoints/step-N, then deletes all but the newest `keep` whole checkpoints
// (never the one just written). A failure on any rank throws AgreedError on all and leaves older checkpoints alone.
void save_checkpoint(Comm& world, const std::filesystem::path& run_dir, const TrainState& state,
                     const ParamStore& store, Index keep);

// Step folder, or run folder: its newest whole checkpoint (those that do not verify are named in `warnings` and passed
// over). Throws InputError when there is none. Not collective.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& step_or_run, std::vector<std::string>* warnings);

// What is wrong with a step folder: digests, missing and foreign files. Empty: nothing. Reads every byte.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& step_dir);

// Reads the state alone.
TrainState read_state(const std::filesystem::path& step_dir);

// Reads the boxes and ranges that this rank's store owns, whatever layout wrote them; optimizer state too when the store
// has it. Throws InputError naming the tensor when one is missing, has another shape or holds NaN (a lost shard).
void load_checkpoint(const std::filesystem::path& step_dir, ParamStore& store);

// A tensor of a checkpoint, for inspect, diff and analysis.
struct TensorInfo {
  std::string name;  // "/params/..." etc.
  std::string dtype;
  std::vector<Index> shape;
};
std::vector<TensorInfo> list_tensors(const std::filesystem::path& step_dir);
// Elements [begin, begin + count) in row-major order along the first dimension's rows: whole rows [row, row + rows).
std::vector<double> read_rows(const std::filesystem::path& step_dir, const std::string& name, Index row, Index rows);

struct TensorDifference {
  std::string name;
  double max_abs = 0;      // NaN where either side is NaN and the other is not
  bool bitwise_equal = true;
  std::string note;        // "only in A", "[4, 2] against [4, 3]"
};
// Compares /params, /optimizer, /router and /experts of two checkpoints, in bounded memory.
std::vector<TensorDifference> diff_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace sy
