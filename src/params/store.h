// Storage of parameters, gradients and optimizer state in flat buffers.
// A group is the parameters of one update rule whose gradients are summed over the same mesh axes.
// A flat buffer of a group holds the local box of each of its parameters:
//
//   weights  [n]          f32 or bf16; gradients [n] f32. n is a multiple of shards * 64.
//   state    [n / shards] ZeRO-1 range [shard * n / shards, (shard + 1) * n / shards) of each state
//                         tensor of the update rule (src/optimizers/update_rule.h)
//   master   [n / shards] f32 values of bf16 weights before rounding; empty if weights are f32
//
// Frozen parameters (ParamSpec::frozen) are in groups of their own, which have weights alone.
// `shards` is the number of ranks along the axes of the group. Each rank owns an equal range.
#pragma once

#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.h"
#include "kernels/philox.h"
#include "src/optimizers/update_rule.h"
#include "src/params/packed_weights.h"
#include "src/params/param_all_gather.h"
#include "src/params/specs.h"

namespace sy {

// Copies f32 values of the host to a tensor of f32 or bf16.
void copy_rounded(Device& device, std::span<const float> values, View to);

// Position of a parameter's local box in a flat buffer.
struct ParamSlice {
  const ParamSpec* spec;
  Box box;            // of the global parameter; experts are physical ones (ParamSpec)
  Index offset;       // first element in the group's buffer
  std::size_t group;  // index in FlatLayout::groups
  Range range() const { return {offset, offset + box.elements()}; }
};

// Layout of the flat buffers of one group.
struct GroupLayout {
  Axes axes;
  Optimizer optimizer;
  DType state_dtype;  // of all its parameters (ParamSpec::state_dtype)
  bool frozen;        // of all its parameters (ParamSpec::frozen)
  std::vector<ParamSlice> slices;
  Index elements = 0;         // size of the buffer, including padding
  int shards = 1, shard = 0;  // number of ranks along the axes, and this rank's index
  // Range of each bucket (ParamSpec::bucket). All groups have equally many; some are empty.
  std::vector<Range> buckets{};
  Range owned() const { return {elements / shards * shard, elements / shards * (shard + 1)}; }
  // Elements of the range that this rank updates.
  Index trained_elements() const { return frozen ? 0 : owned().size(); }
  // Returns the range of `buffer`: [elements] that this rank owns.
  View owned_of(View buffer) const { return buffer.rows(owned().begin, owned().size()); }
  // All-gathers `buffer`: [elements] from the ranks that own its ranges. Collective over `axes`.
  void all_gather(const Mesh& mesh, View buffer) const {
    if (shards > 1) mesh.over(axes).all_gather(owned_of(buffer), buffer);
  }
  // Divides the range `flat` of `buffer` by owner, in order. The root of each result is the owner's
  // rank along the axes. buffer: [elements].
  std::vector<RootedBuffer> by_owner(View buffer, Range flat) const;
};

// Layout of all flat buffers of one rank.
struct FlatLayout {
  // one for each set of axes and optimizer, ordered by axes (Axes::operator<), then optimizer, then
  // frozen ones last
  std::vector<GroupLayout> groups;
  // Size of the memory for gradients of frozen vectors, which nothing reads.
  Index discarded_elements = 0;
  // Elements of all weights, including padding.
  Index elements() const { return sum(&GroupLayout::elements); }
  // Elements of all gradients, including padding and discarded_elements.
  Index gradient_elements() const {
    return discarded_elements + sum([](const GroupLayout& g) { return g.frozen ? 0 : g.elements; });
  }
  // Elements of weights that this rank owns, including padding.
  Index owned_elements() const {
    return sum([](const GroupLayout& g) { return g.owned().size(); });
  }
  // The same without frozen ones: elements that the rank updates.
  Index trained_elements() const { return sum(&GroupLayout::trained_elements); }
  // Bytes of all state tensors that this rank owns.
  Index state_bytes() const;
  // Returns the sum of of_group(GroupLayout), which may be a pointer to a member.
  Index sum(const std::function<Index(const GroupLayout&)>& of_group) const {
    return std::transform_reduce(groups.begin(), groups.end(), Index{0}, std::plus<>(), of_group);
  }
};
// Returns the layout of the rank at `coord`. Pure function. `specs` must outlive the result.
// specs: ordered by bucket (ParamSpec::bucket).
FlatLayout flat_layout(const std::vector<ParamSpec>& specs, const Layout& layout, const Coord& coord);

// Returns whether several tensor-parallel ranks hold the same box of the parameter (kv heads).
bool is_kv_replicated(const ParamSpec& spec, int tp);

// Joins the replicas that the gradients of these parameters are summed over: join_kv_replicas, and
// join_expert_replicas if a parameter needs it. Collective.
void join_replicas(Mesh& mesh, const std::vector<ParamSpec>& specs, Index kv_heads);

// Range of a parameter that this rank owns in the optimizer.
// `local`: within the parameter's box. `flat`: within the group's buffer.
struct OwnedRange {
  const ParamSlice* slice;
  Range local, flat;
};
// Returns the owned ranges of a group, in order.
std::vector<OwnedRange> owned_ranges(const GroupLayout& group);

// Local box of a parameter.
struct Param {
  // weight: f32 or bf16. grad: f32; empty if the store is not for training. The gradient of a
  // frozen weight is empty. Other frozen parameters have memory that nothing reads.
  View weight, grad;
  explicit operator bool() const { return weight.present(); }
  // Returns the same parameter, which must exist, in another shape.
  Param reshape(const Shape& shape) const { return {weight.reshape(shape), grad ? grad.reshape(shape) : View{}}; }
};

// LoRA adapters of a matrix [N, Q], or of a stack of E such matrices (src/params/lora.h).
// Block p is rows `blocks[p]` of the matrix: a query, key or value projection, or a gate. Its A is
// rows [p * rank, (p + 1) * rank) of `a`. Its B is the next rows of `b`.
struct Adapter {
  Param a;  // [P * rank, Q] or [E, P * rank, Q]
  Param b;  // [rows of all blocks, rank] or [E, rows of all blocks, rank]
  Index rank = 0;
  float scale = 1;  // AdapterSpec::scale
  std::vector<Range> blocks;
};

// A weight of GEMMs: a matrix or a stack of matrices.
struct MatrixParam {
  Weight weight;  // with its packed forms
  View grad;      // f32; empty if the store is not for training
  // Flag of the store: the gradient is zero, but its memory has old values (clear_gradients).
  // nullptr if there is no gradient.
  bool* gradient_is_zero = nullptr;
  std::optional<Adapter> adapter{};  // empty if LoRA does not change the weight
  // Returns the accumulate flag of the next weight-gradient GEMM, and marks the gradient as
  // written. Call it exactly once per GEMM. If `gradient_is_zero` is nullptr, it is always true.
  // Otherwise it is false for the first GEMM after clear_gradients(), and this GEMM must overwrite
  // the whole gradient.
  // NOLINTNEXTLINE(readability-make-member-function-const): it changes the flag of the store
  bool take_accumulate_flag() { return !gradient_is_zero || !std::exchange(*gradient_is_zero, false); }
};

class ValueSource;  // src/params/values.h

// Weights that a rank reads: its local boxes, or the ranges of them that it owns (owned_ranges).
// After the latter, gather_weights() must spread them. The ranks along data parallelism then read
// each weight once, and not all weights each.
enum class WeightRanges { local, owned };

// Owns the flat buffers of one rank.
class ParamStore {
 public:
  // Allocates the flat buffers, filled with zeros. Throws NoMemory.
  // - training: if true, allocates gradients and optimizer state too
  // - dtype: type of the weights, f32 or bf16
  // - packing: how to pack weights for GEMMs (PackedWeights)
  ParamStore(Device& device, std::vector<ParamSpec> specs, const Layout& layout, const Coord& coord, bool training,
             DType dtype = DType::f32, WeightPacking packing = {});
  ParamStore(const ParamStore&) = delete;

  // ---- parameter all-gather ----
  // New weights may be in flight from their owners. Code that reads other ranks' weights must call
  // wait_for_bucket() or finish_all_gather() first. set_values() does it itself. These calls are
  // collective while weights are in flight.

  // Starts the all-gather (ParamAllGather::start). The previous one must be finished.
  void start_all_gather(const std::vector<ParamAllGather::Group>& groups) { all_gather_.start(groups); }
  // True while weights are in flight.
  bool all_gather_in_flight() const { return all_gather_.in_flight(); }
  // Compute enqueued after this call waits for the weights of the buckets up to `bucket`. Starts
  // the all-gather of the next bucket. No-op if no weights are in flight.
  void wait_for_bucket(Index bucket) { all_gather_.wait_for_bucket(bucket); }
  // Does the same for all buckets.
  void finish_all_gather() { all_gather_.finish(); }

  // Sets the local box of every parameter to the values of `source`, by set_values().
  // is_read: if set, parameters for which it returns false stay as they are
  void fill(ValueSource& source, const std::function<bool(const ParamSpec&)>& is_read = {});
  // Sets the local box of every parameter to InitialValues(seed).
  void initialize(std::uint64_t seed);

  // find(), get(), box() and get_fused() read no weights, and need no all-gather to be finished.
  // Returns the local box of a parameter; Param{} if the model has none of this name.
  Param find(const std::string& name) const;
  Param get(const std::string& name) const;  // the parameter must exist
  // Returns the box of the global parameter that get() returns. The parameter must exist.
  const Box& box(const std::string& name) const { return slice_of(name).box; }
  // The same for its spec.
  const ParamSpec& spec(const std::string& name) const { return *slice_of(name).spec; }
  // Returns `first` and the `count - 1` parameters fused with it as one matrix.
  // Shape: [rows of all, N]. N is the last dimension of `first`.
  Param get_fused(const std::string& first, int count) const;

  // Returns a parameter of this store as a weight [N, Q] or [E, N, Q] of GEMMs. Registers it for
  // packed_weights() and clear_gradients(). A weight with adapters is not packed.
  // Layers that share a parameter must use the same elements of it.
  MatrixParam register_matrix(const Param& param, const Shape& shape);

  // Sets all gradients to zero. It only marks the gradients of register_matrix() as zero, which
  // saves clearing and reading their memory. The first GEMM (MatrixParam::take_accumulate_flag) or
  // finish_gradients() writes the memory. Other code that adds to such a gradient (a tied
  // embedding) must run after the first GEMM.
  void clear_gradients();
  // Writes zeros to the marked gradients that no GEMM has written. `range`: consecutive elements of
  // a group's gradients; by default all. Call it before any other code than GEMMs reads gradients.
  void finish_gradients();
  void finish_gradients(View range);
  // Number of gradients that are marked as zero: the next GEMM of each overwrites its memory.
  Index unwritten_gradients() const;

  // Copy elements [begin, begin + n) of a parameter's local box from and to the host, in f32.
  // If weights are bf16, get_values() returns the values before rounding, which only a store for
  // training has. If weights are bf16 or in flight, get_values() requires that this rank owns the
  // elements (owned_ranges).
  void set_values(const ParamSlice& slice, Index begin, std::span<const float> values);
  void get_values(const ParamSlice& slice, Index begin, std::span<float> values) const;

  // Copy elements [begin, begin + n) of a group's state tensor from and to the host, in f32. A bf16
  // tensor holds the values rounded to nearest.
  // state: index in Buffers::state; begin: within the owned range
  void set_state(std::size_t group, std::size_t state, Index begin, std::span<const float> values);
  void get_state(std::size_t group, std::size_t state, Index begin, std::span<float> values) const;

  // Flat buffers of one group, with the shapes at the top of this file.
  struct Buffers {
    // Weights of other owners are valid after finish_all_gather().
    Tensor weights, grads;
    std::vector<Tensor> state;  // in the order of UpdateRule::state
    Tensor master;
  };
  const std::vector<ParamSpec>& specs() const { return specs_; }
  const FlatLayout& layout() const { return layout_; }
  const Layout& mesh_layout() const { return mesh_layout_; }
  DType dtype() const { return dtype_; }
  bool training() const { return training_; }
  // Flat buffers of a group, by its index in FlatLayout::groups. Code that changes weights in them
  // must call packed_weights().invalidate().
  Buffers& buffers(std::size_t group) { return buffers_[group]; }
  const Buffers& buffers(std::size_t group) const { return buffers_[group]; }
  // Bytes of all flat buffers and of the packed weights.
  Index allocated_bytes() const;
  Device& device() const { return device_; }
  PackedWeights& packed_weights() { return packed_weights_; }
  const PackedWeights& packed_weights() const { return packed_weights_; }

 private:
  Device& device_;
  std::vector<ParamSpec> specs_;
  Layout mesh_layout_;
  DType dtype_;
  bool training_;
  FlatLayout layout_;
  std::vector<Buffers> buffers_;  // one for each group
  Tensor discarded_;              // [FlatLayout::discarded_elements] if this store is for training
  std::map<std::string, const ParamSlice*> by_name_;
  const ParamSlice& slice_of(const std::string& name) const;  // the parameter must exist
  // Returns the local box of `first`, or those of `first` and slices after it, in this shape.
  Param param_of(const ParamSlice& first, const Shape& shape) const;
  // Returns the adapters of a weight of this store, or of weights that are fused.
  std::optional<Adapter> adapter_of(const Param& param, const Shape& shape) const;
  PackedWeights packed_weights_;
  struct Gradient {
    View values;
    bool is_zero = false;  // MatrixParam::gradient_is_zero
  };
  // Host devices only: gradients of register_matrix() by address. They do not overlap.
  std::map<const std::byte*, Gradient> matrices_;
  ParamAllGather all_gather_;
};

// All-gathers the weights of all parameters, frozen ones too, from the ranks that own them.
// Collective over the mesh. The ranges of other owners may have any values before.
void gather_weights(const Mesh& mesh, ParamStore& store);

}  // namespace sy
