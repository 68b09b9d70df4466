// Where the parameters lie. A group is the parameters whose gradients are summed over the same mesh axes. It has one flat
// buffer, and within it each parameter's local box:
//
//   weights  [n]          f32 or bf16; gradients [n] f32    n a multiple of shards * 64
//   m, v     [n / shards] the ZeRO-1 range [shard * n / shards, (shard + 1) * n / shards)
//   master   [n / shards] the f32 values that bf16 weights are rounded from; none where weights are f32
//
// `shards` is the number of ranks along those axes; each owns an equal range of the buffer.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/philox.h"
#include "src/params/fetch.h"
#include "src/params/prepared.h"
#include "src/params/specs.h"

namespace sy {

struct Placement {
  const ParamSpec* spec;
  Box box;            // the local part of the parameter, in places of the first dimension (ParamSpec::order)
  Index offset;       // its first element in the group's buffer
  std::size_t group;  // of FlatLayout::groups
  Range range() const { return {offset, offset + box.elements()}; }
};

struct GroupLayout {
  Axes axes;
  std::vector<Placement> placements;
  Index elements = 0;  // of the buffer, padding included
  int shards = 1, shard = 0;
  // The buffer cut by ParamSpec::part: as many pieces in all groups; some are empty.
  std::vector<Range> parts{};
  Range owned() const { return {elements / shards * shard, elements / shards * (shard + 1)}; }
  // A range of `buffer`, [elements], in pieces of one owner, which is a rank along the axes.
  std::vector<Rooted> by_owner(View buffer, Range flat) const;
};

// Pure: what a rank at `coord` holds. `specs` must outlive it.
struct FlatLayout {
  std::vector<GroupLayout> groups;  // one for each set of axes among the specs, in the order of these sets
  Index elements() const;           // of all weights, and of all gradients
  Index owned_elements() const;     // of m, and of v
};
FlatLayout flat_layout(const std::vector<ParamSpec>& specs, const Layout& layout, const Coord& coord);

// One part of an owned optimizer range that belongs to one parameter: `local` within the parameter's box, `flat` within
// the group's buffer.
struct OwnedRun {
  const Placement* placement;
  Range local, flat;
};
std::vector<OwnedRun> owned_runs(const GroupLayout& group);

struct Param {
  View weight, grad;  // f32 or bf16; f32
  explicit operator bool() const { return weight.present(); }
};

// One that products multiply by, as a matrix or a stack of them.
struct MatrixParam {
  Weight weight;  // with its prepared forms
  View grad;      // f32
  // Of the store: whether the gradient only counts as zero (clear_gradients). None: it never does.
  bool* cleared = nullptr;
  // Whether the product that is computed next adds to the gradient: not the first one since gradients were cleared, which
  // writes all of it. To be asked once for each product, as it counts as computed then.
  bool adds() const { return !cleared || !std::exchange(*cleared, false); }
};

class ValueSource;  // src/params/values.h

class ParamStore {
 public:
  // training: gradients and optimizer state are allocated too. dtype: of the weights. prepare_for: of PreparedWeights.
  ParamStore(Backend& backend, std::vector<ParamSpec> specs, const Layout& layout, const Coord& coord, bool training,
             DType dtype = DType::f32, std::vector<WeightUse> prepare_for = {});
  ParamStore(const ParamStore&) = delete;

  // ---- new weights, which may be under way from the ranks that own them ----
  // What reads weights of others by views that it had before calls need or whole; all below, but for get_values and buffers,
  // call whole. These are collective while weights are under way.
  void fetch(std::vector<WeightFetch::Group> groups) { fetch_.begin(std::move(groups)); }
  bool fetching() const { return fetch_.under_way(); }
  // What the backend is given from now on sees the weights of the parts up to this one (ParamSpec::part).
  void need(Index part) const { fetch_.need(part); }
  // The same of all parts.
  void whole() const { fetch_.finish(); }

  // Takes the local part of every parameter from `source`.
  void fill(ValueSource& source);
  // The same from InitialValues.
  void initialize(std::uint64_t seed);

  // The local part of a parameter. Param{} where the model has none of that name.
  Param find(const std::string& name) const;
  Param get(const std::string& name) const;  // must exist
  // Which part of the whole parameter that is. It must exist.
  const Box& box(const std::string& name) const;
  // `first` and the `count - 1` joined after it, read as one matrix [sum of rows, row elements].
  Param get_joined(const std::string& first, int count) const;

  // A parameter of this store read as [N, Q] or [E, N, Q], whose products the model computes. What several parts of a model use
  // is read as the same elements by each of them.
  MatrixParam matrix(const Param& param, const Shape& shape);

  // All gradients become zero. On the host those of matrices (matrix()) only count as zero, and memory keeps what it held, until
  // a product has written them (MatrixParam::adds) or finish_gradients() has: so they are neither cleared nor read before.
  // What adds to such a gradient and is no product, as a tied embedding does, must follow the first product.
  void clear_gradients();
  // Those that no product has written become zero. To be called before gradients are read by others than products.
  void finish_gradients();

  // Elements [begin, begin + n) of a parameter's local part, from and to the host: its values in f32, which weights of
  // bf16 are rounded from. get_values: where this rank owns them (owned_runs).
  void set_values(const Placement& placement, Index begin, std::span<const float> values);
  void get_values(const Placement& placement, Index begin, std::span<float> values) const;

  struct Buffers {
    Tensor weights, grads, m, v, master;  // of the weights, what others own is there after whole()
  };
  const std::vector<ParamSpec>& specs() const { return specs_; }
  const FlatLayout& layout() const { return layout_; }
  const Layout& mesh_layout() const { return mesh_layout_; }
  DType dtype() const { return dtype_; }
  Buffers& buffers(std::size_t group) { return buffers_[group]; }
  const Buffers& buffers(std::size_t group) const { return buffers_[group]; }
  Index allocated_bytes() const;
  Backend& backend() const { return backend_; }
  PreparedWeights& prepared() { return prepared_; }
  const PreparedWeights& prepared() const { return prepared_; }

 private:
  Backend& backend_;
  std::vector<ParamSpec> specs_;
  Layout mesh_layout_;
  DType dtype_;
  FlatLayout layout_;
  std::vector<Buffers> buffers_;  // of each group
  std::map<std::string, const Placement*> by_name_;
  PreparedWeights prepared_;
  struct Gradient {
    View values;
    bool cleared = false;  // counts as zero
  };
  std::map<const std::byte*, Gradient> matrices_;  // on the host: their gradients, by address; they do not overlap
  mutable WeightFetch fetch_;                      // who reads weights waits for them
};

}  // namespace sy
