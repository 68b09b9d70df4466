// Components of saving and loading. They use no communicator: one process can write all shards.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/checkpoint.h"
#include "src/io/manifest.h"
#include "src/params/values.h"
#include "src/system/digest.h"

namespace sy {

// A kind of tensors of parameters in a checkpoint, all f32: weights, or one optimizer state.
// If the model computes in bf16, /params holds the f32 master values of its weights.
struct TensorKind {
  std::string prefix;      // of the dataset's name; the parameter's name follows
  std::string_view state;  // StateTensor::name; empty: the parameter's values
  std::string_view meaning;
  // Index of the state among that of an optimizer. Empty if it has none, or if the kind is weights.
  std::optional<std::size_t> state_index(Optimizer optimizer) const;
  // Returns true if the parameter has such a tensor.
  bool covers(const ParamSpec& spec) const { return state.empty() || (!spec.frozen && state_index(spec.optimizer)); }
};
constexpr const char* params_prefix = "/params/";
constexpr const char* norm_averages_name = "/norm/averages";
// Returns the kinds of these parameters' tensors. The first one is weights.
std::vector<TensorKind> tensor_kinds(const std::vector<ParamSpec>& specs);

// Attribute of /state: all values were checked to be finite. Older checkpoints lack it.
constexpr const char* finite_attribute = "finite";
// Writes the training state to an index: /state, /experts and /router. Throws Failure.
void write_state(CheckpointWriter& index, const TrainState& state);

// Returns the ranges of parameters that a rank writes; pointers refer to `flat`.
// They are its ZeRO-1 ranges without those that a lower rank holds too (kv heads if kv_heads < tp).
// Over all ranks, every element of every parameter occurs exactly once.
std::vector<OwnedRange> shard_ranges(const FlatLayout& flat, const Layout& layout, const Coord& coord);

// Sum of the bits of values. A change of one bit always changes it. A replacement of values by
// random ones leaves it equal with a probability of about 2^-32. Within a block, exchanged values
// leave it equal, and so does a bit that is set in one value and cleared in another.
class ValueSum {
 public:
  // The compiler uses vectors for loops of a fixed length.
  static constexpr std::size_t block = 1024;
  // Adds values. Returns true if all are finite. The number of values must be a multiple of
  // `block`, except in the last call for a range. Sums of the same ranges are then equal, however
  // long the calls are.
  bool add(std::span<const float> values) {
    std::uint32_t not_finite = 0;
    const auto add_bits = [&](const auto& range) {  // std::span, of any extent
      std::uint32_t bits_sum = 0;
      for (const float x : range) {
        constexpr std::uint32_t exponent = 0x7f80'0000;
        const auto bits = std::bit_cast<std::uint32_t>(x);
        not_finite |= (bits & exponent) == exponent;
        bits_sum += bits;
      }
      sum_ = sum_ * 0x9e37'79b9'7f4a'7c15 + bits_sum;  // odd: no bit of the sum is lost
    };
    for (; values.size() >= block; values = values.subspan(block)) add_bits(values.first<block>());
    if (!values.empty()) add_bits(values);
    return not_finite == 0;
  }
  bool operator==(const ValueSum&) const = default;

 private:
  std::uint64_t sum_ = 0;
};

inline bool all_finite(std::span<const float> values) {
  return ValueSum().add(values);
}
// Returns the name of the first tensor with a value that is not finite; "" if all are finite.
// Skips /experts/. Reads all other tensors.
std::string first_not_finite(const CheckpointTensors& tensors);
// Returns the same for the weights and the optimizer state that `rank` writes of its store.
std::string first_not_finite(const ParamStore& store, int rank);

// Least number of mappings of a linked index, except the last one.
constexpr Index default_mappings_per_index = 8192;
// Default of ShardContents::mappings_per_index. Tests lower it.
inline Index first_mappings_per_index = default_mappings_per_index;

// Source of the tensors that write_shard writes for one rank.
struct ShardContents {
  const std::vector<ParamSpec>& specs;
  const Layout& layout;
  const FlatLayout& flat;  // of this rank
  std::vector<TensorKind> kinds;
  // Reads elements [begin, begin + values.size()) of `range` of this kind into `values`.
  std::function<void(const TensorKind& kind, const OwnedRange& range, Index begin, std::span<float> values)> read;
  // Number of values that copy_shard() reads before it checks them. Host memory is read in chunks
  // that a cache holds, so that the check does not read it again.
  Index copy_chunk_elements = chunk_elements;
  // Least number of mappings of a linked index, except the last one.
  Index mappings_per_index = first_mappings_per_index;
  // Sum of the values when they were copied. Empty if read() reads no copy.
  std::optional<ValueSum> copied_sum{};
};
// Returns the contents of a store. Waits for its device. The store must outlive the result.
ShardContents shard_contents(const ParamStore& store);

// Returns the number of values that a rank writes.
Index shard_elements(const ShardContents& contents, int rank);
struct ShardCopy {
  std::string not_finite;  // the first tensor with a value that is not finite; "" if all are finite
  ValueSum sum;
};
// Copies these values to `to`: [shard_elements], or nullptr to read them alone.
ShardCopy copy_shard(const ShardContents& contents, int rank, float* to);
// Returns the same contents with the values of copy_shard(). `from` must outlive the result.
// write_shard() may read the result once. sum: of the copy; write_shard() checks it.
ShardContents copied_contents(const ShardContents& contents, const float* from, const ValueSum& sum);

// Size and digest of a written file, as in the manifest.
struct WrittenFile {
  Index bytes;
  Digest sha256;
};

// Closes, hashes and verifies a file. Throws Failure.
WrittenFile finish_file(CheckpointWriter& file, const std::filesystem::path& path);

// Writes the shard of one rank to a new file in `dir`, syncs it and verifies it. Throws Failure,
// also if copied values have changed in memory.
WrittenFile write_shard(const CheckpointFormat& format, const std::filesystem::path& dir, const TrainState& state,
                        const ShardContents& contents, int rank);

// The files that hold the mappings of slices to whole tensors (docs/design/checkpoints.md).
struct IndexPlan {
  int ranks = 1;
  // Consecutive parameters of each file. One file is the index itself; more are linked indexes.
  std::vector<Range> params;
  // Returns the number of linked indexes: 0, or at least 2.
  int linked() const { return params.size() > 1 ? static_cast<int>(params.size()) : 0; }
  Range params_of(int number) const { return params[static_cast<std::size_t>(number - 1)]; }
  // Returns the rank that writes a linked index. Rank 0 writes none, and no rank writes two.
  int writer(int number) const { return static_cast<int>(Index{number} * ranks / (linked() + 1)); }
};
// Returns the number of mappings of a rank for each parameter, summed over the kinds of tensors.
std::vector<Index> count_mappings(const ShardContents& contents, int rank);
// Divides the parameters among at most ranks - 1 files, or one. Each but the last has at least
// `per_index` mappings.
// - counts: count_mappings(), summed over all ranks
IndexPlan plan_indexes(std::span<const Index> counts, int ranks, Index per_index);

// Returns, as bytes, the mapping of the slices that a rank writes to whole tensors: one text for
// each file of the plan. Each rank computes its own, so that no rank computes another's layout.
std::vector<std::string> encode_mappings(const ShardContents& contents, int rank, const IndexPlan& plan);
// Writes the index to a new file in `dir`, syncs it and verifies it. Throws Failure.
// It holds the training state, and the mapping of all shards to whole tensors, or links to the
// tensors in linked indexes.
// - encoded: text of encode_mappings() of each rank, by rank; empty if the plan has linked indexes
WrittenFile write_index(const CheckpointFormat& format, const std::filesystem::path& dir, const TrainState& state,
                        const std::vector<ParamSpec>& specs, const std::vector<TensorKind>& kinds,
                        const IndexPlan& plan, std::span<const std::string> encoded);
// Writes a linked index in the same way.
// - encoded: text `number` - 1 of encode_mappings() of each rank, by rank
WrittenFile write_linked_index(const CheckpointFormat& format, const std::filesystem::path& dir,
                               const std::vector<ParamSpec>& specs, const std::vector<TensorKind>& kinds,
                               const IndexPlan& plan, int number, std::span<const std::string> encoded);

// Returns true if `end` may follow a name of a folder to make it unique: "", or "-2".
bool is_numbered(std::string_view end);
// Step of a folder that abandon_newer has renamed (step-N.abandoned, step-N.abandoned-2); empty for
// another name.
std::optional<Index> abandoned_step(const std::string& name);

// Deletes old checkpoints and returns one warning for each that it could not delete.
// Checkpoint `step` and the newest keep - 1 before it stay, and so do those that `retention` names.
// Checkpoints without a manifest do not count towards `keep`. They stay, as do checkpoints with
// other files.
// Checkpoints after `step` stay as they are.
// Deletes abandoned checkpoints that are older than the oldest of those `keep`.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& checkpoints, Index step,
                                           const Retention& retention);
// Deletes the unfinished folders of an interrupted save or prune, such as step-N.tmp.
// If a folder holds other files too, they stay in it. Returns one warning for each such folder, and
// for each that cannot be deleted. Throws InputError if `checkpoints` cannot be read.
std::vector<std::string> remove_leftovers(const std::filesystem::path& checkpoints);
// Returns step-N.tmp for number 1, step-N.tmp-2 for number 2, and so on.
std::filesystem::path unfinished_path(const std::filesystem::path& checkpoints, Index step, Index number);
// Returns the smallest number whose unfinished_path does not exist.
Index free_number(const std::filesystem::path& checkpoints, Index step);

}  // namespace sy
