#include "src/params/matrix_exchange.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace sy {
namespace {

// One matrix of a parameter.
struct GlobalMatrix {
  const ParamSpec* spec;
  std::vector<int> holders{};  // ranks that hold a shard of it, ascending
  int owner = 0;
  Index offset = 0;  // first element among the matrices of its owner
};

// Elements of one matrix in the owned range of one rank.
struct Fragment {
  const ParamSlice* slice;
  std::size_t matrix;
  Range local;     // within the shard of the matrix
  Index owned_at;  // first element within the owned range
};

// Consecutive elements of a buffer, and their position in another one.
struct Run {
  Index at, size;
};

Shape dims_from(const Shape& shape, int first) {
  Shape out;
  for (int d = first; d < shape.size(); ++d) out.push_back(shape[d]);
  return out;
}

// Returns the number of matrices of a box of a parameter, or of the whole parameter.
Index count_matrices(const ParamSpec& spec, const Shape& size) {
  Index n = 1;
  for (int d = 0; d < spec.matrix.stack_dims; ++d) n *= size[d];
  return n;
}

// Returns the number of a matrix within its parameter. local: its number within the box.
Index matrix_of(const ParamSpec& spec, const Box& box, Index local) {
  Index global = 0, stride = 1;
  for (int d = spec.matrix.stack_dims; d-- > 0;) {
    global += (box.begin[d] + local % box.size[d]) * stride;
    local /= box.size[d];
    stride *= spec.shape[d];
  }
  return global;
}

MatrixExchangePlan::Matrix size_of_matrix(const ParamSpec& spec) {
  MatrixExchangePlan::Matrix out{1, 1};
  for (int d = spec.matrix.stack_dims; d < spec.shape.size(); ++d)
    (d < spec.matrix.stack_dims + spec.matrix.row_dims ? out.rows : out.columns) *= spec.shape[d];
  return out;
}

// Calls f(first element of the whole matrix, elements) for consecutive elements of a fragment.
void for_runs(const Fragment& fragment, const std::function<void(Index, Index)>& f) {
  const ParamSpec& spec = *fragment.slice->spec;
  const int stack = spec.matrix.stack_dims;
  const Shape whole = dims_from(spec.shape, stack), shard = dims_from(fragment.slice->box.size, stack),
              begin = dims_from(fragment.slice->box.begin, stack);
  const int last = whole.size() - 1;
  Run run{0, 0};
  for (const Box& box : boxes_of_range(shard, fragment.local)) {
    const Index width = box.size[last];
    for (Index row = 0; row < box.elements() / width; ++row) {
      Index rest = row, at = begin[last] + box.begin[last], stride = whole[last];
      for (int d = last; d-- > 0;) {
        at += (begin[d] + box.begin[d] + rest % box.size[d]) * stride;
        rest /= box.size[d];
        stride *= whole[d];
      }
      if (run.size > 0 && run.at + run.size != at) f(run.at, std::exchange(run.size, 0));
      if (run.size == 0) run.at = at;
      run.size += width;
    }
  }
  if (run.size > 0) f(run.at, run.size);
}

// All matrices of a group, and the fragments of each rank in the order of the matrices.
class Matrices {
 public:
  Matrices(const std::vector<ParamSpec>& specs, const Layout& layout, std::size_t group) {
    layouts_.reserve(static_cast<std::size_t>(layout.ranks));
    for (int rank = 0; rank < layout.ranks; ++rank) {
      layouts_.push_back(flat_layout(specs, layout, coord_of(layout, rank)));
      add_fragments(layouts_.back().groups[group], rank);
    }
    assign_owners(layout.ranks);
  }

  std::vector<GlobalMatrix> all;
  std::vector<std::vector<Fragment>> fragments;  // of each rank

 private:
  void add_fragments(const GroupLayout& group, int rank) {
    if (all.empty())
      for (const ParamSlice& slice : group.slices)
        all.insert(all.end(), static_cast<std::size_t>(count_matrices(*slice.spec, slice.spec->shape)), {slice.spec});
    std::vector<Fragment>& out = fragments.emplace_back();
    const Range owned = group.owned();
    std::size_t first = 0;
    for (const ParamSlice& slice : group.slices) {
      const Index count = count_matrices(*slice.spec, slice.box.size);
      for (Index local = 0; local < count; ++local) {
        const std::size_t matrix = first + static_cast<std::size_t>(matrix_of(*slice.spec, slice.box, local));
        all[matrix].holders.push_back(rank);
        const Index elements = slice.box.elements() / count, begin = slice.offset + local * elements;
        const Range flat{std::max(owned.begin, begin), std::min(owned.end, begin + elements)};
        if (flat.size() > 0)
          out.push_back({&slice, matrix, {flat.begin - begin, flat.end - begin}, flat.begin - owned.begin});
      }
      first += static_cast<std::size_t>(count_matrices(*slice.spec, slice.spec->shape));
    }
  }

  // Assigns the largest matrices first, each to the holder with the fewest elements.
  void assign_owners(int ranks) {
    std::vector<std::size_t> order(all.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto elements = [&](std::size_t i) { return size_of_matrix(*all[i].spec).elements(); };
    std::ranges::stable_sort(order, std::greater(), elements);
    std::vector<Index> load(static_cast<std::size_t>(ranks)), offset(load);
    for (const std::size_t i : order) {
      all[i].owner = *std::ranges::min_element(all[i].holders, {}, [&](int rank) { return load[rank]; });
      load[all[i].owner] += elements(i);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].offset = offset[all[i].owner];
      offset[all[i].owner] += elements(i);
    }
  }

  std::vector<FlatLayout> layouts_;  // the fragments point into them
};

// Runs of one side of an exchange, in the order of its buffer, and the elements for each rank.
struct Side {
  std::vector<Run> runs;
  std::vector<Index> elements;
};

// Returns the fragments of `rank` in the order of their owners, by position in the owned range.
Side shards_of(const Matrices& matrices, int rank, int ranks) {
  Side side{{}, std::vector<Index>(static_cast<std::size_t>(ranks))};
  for (int owner = 0; owner < ranks; ++owner)
    for (const Fragment& f : matrices.fragments[rank]) {
      if (matrices.all[f.matrix].owner != owner) continue;
      Index at = f.owned_at;
      for_runs(f, [&](Index, Index size) {
        side.runs.push_back({at, size});
        at += size;
      });
      side.elements[owner] += f.local.size();
    }
  return side;
}

// Returns the fragments of the matrices that `owner` owns in the order of the ranks, by position
// among its matrices.
Side matrices_of(const Matrices& matrices, int owner, int ranks) {
  Side side{{}, std::vector<Index>(static_cast<std::size_t>(ranks))};
  for (int rank = 0; rank < ranks; ++rank)
    for (const Fragment& f : matrices.fragments[rank]) {
      const GlobalMatrix& matrix = matrices.all[f.matrix];
      if (matrix.owner != owner) continue;
      for_runs(f, [&](Index at, Index size) { side.runs.push_back({matrix.offset + at, size}); });
      side.elements[rank] += f.local.size();
    }
  return side;
}

// Index of y[i] = x[index[i]], in rows of `width`: y is the buffer of the runs.
std::vector<std::int32_t> gather_index(const std::vector<Run>& runs, Index width) {
  std::vector<std::int32_t> index;
  for (const Run& run : runs)
    for (Index i = 0; i < run.size / width; ++i) index.push_back(static_cast<std::int32_t>(run.at / width + i));
  return index;
}

// The same with x as the buffer of the runs. elements: size of y.
std::vector<std::int32_t> scatter_index(const std::vector<Run>& runs, Index width, Index elements) {
  std::vector<std::int32_t> index(static_cast<std::size_t>(elements / width), -1);
  std::int32_t next = 0;
  for (const Run& run : runs)
    for (Index i = 0; i < run.size / width; ++i) index[static_cast<std::size_t>(run.at / width + i)] = next++;
  return index;
}

}  // namespace

Index MatrixExchangePlan::matrix_elements() const {
  Index n = 0;
  for (const Matrix& m : matrices) n += m.elements();
  return n;
}

Index MatrixExchangePlan::scratch_elements(const UpdateRule& rule) const {
  Index n = 0;
  for (const Matrix& m : matrices) n = std::max(n, rule.matrix_rule->scratch(m.rows, m.columns));
  return n;
}

Index MatrixExchangePlan::bytes(const UpdateRule& rule) const {
  const std::size_t indices = pack.size() + assemble.size() + disassemble.size() + unpack.size();
  const auto shards = static_cast<Index>(pack.size() + disassemble.size()) * width;
  return (matrix_elements() + shards + scratch_elements(rule)) * 4 + std::ssize(matrices) * 8 +
         static_cast<Index>(indices) * 4;
}

MatrixExchangePlan matrix_exchange(const std::vector<ParamSpec>& specs, const Layout& layout, int rank,
                                   std::size_t group) {
  const Matrices matrices(specs, layout, group);
  const Side shards = shards_of(matrices, rank, layout.ranks), whole = matrices_of(matrices, rank, layout.ranks);
  const Index owned = flat_layout(specs, layout, coord_of(layout, rank)).groups[group].owned().size();
  MatrixExchangePlan out;
  out.by_owner = shards.elements;
  out.by_rank = whole.elements;
  for (const GlobalMatrix& matrix : matrices.all)
    if (matrix.owner == rank) out.matrices.push_back(size_of_matrix(*matrix.spec));
  // The widest rows that no run, and no position of a run, cuts. The limit keeps many rows for the
  // threads of a device.
  constexpr Index max_width = 4096;
  out.width = std::gcd(owned, max_width);
  for (const Side* side : {&shards, &whole})
    for (const Run& run : side->runs) out.width = std::gcd(out.width, std::gcd(run.at, run.size));
  out.pack = gather_index(shards.runs, out.width);
  out.assemble = scatter_index(whole.runs, out.width, out.matrix_elements());
  out.disassemble = gather_index(whole.runs, out.width);
  out.unpack = scatter_index(shards.runs, out.width, owned);
  return out;
}

}  // namespace sy
