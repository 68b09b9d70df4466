#include "src/params/matrix_exchange.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

namespace sy {
namespace {

// A box of a parameter as a stack of matrices.
struct MatrixBox {
  Range stack, rows, columns;
};

// Returns the dimensions [first, last) of a box as one. Only the first of them may be split.
Range merged(const ParamSpec& spec, const Box& box, int first, int last) {
  Index inner = 1;
  for (int d = first + 1; d < last; ++d) {
    SY_ASSERT(box.size[d] == spec.shape[d], "{}: dimension {} of matrices is split", spec.name, d);
    inner *= spec.shape[d];
  }
  return first == last ? Range{0, 1} : Range{box.begin[first] * inner, (box.begin[first] + box.size[first]) * inner};
}

MatrixBox matrix_box(const ParamSpec& spec, const Box& box) {
  const int rows = spec.matrix->stack_dims, columns = rows + spec.matrix->row_dims;
  return {merged(spec, box, 0, rows), merged(spec, box, rows, columns), merged(spec, box, columns, spec.shape.size())};
}

// One matrix of a parameter.
struct GlobalMatrix {
  MatrixExchangePlan::Matrix size;
  std::vector<int> holders{};  // ranks that hold a shard of it, ascending
  int owner = 0;
  Index offset = 0;  // first element among the matrices of its owner
};

// Elements of one matrix in the owned range of one rank.
struct Fragment {
  std::size_t matrix;
  Range rows, columns;  // the shard of the matrix
  Range local;          // within the shard
  Index owned_at;       // first element within the owned range
};

// All matrices of a group, and the fragments of each rank in the order of the matrices.
struct Matrices {
  std::vector<GlobalMatrix> all;
  std::vector<std::vector<Fragment>> fragments;

  Matrices(const std::vector<ParamSpec>& specs, const Layout& layout, std::size_t group) {
    for (int rank = 0; rank < layout.ranks; ++rank)
      add_rank(flat_layout(specs, layout, coord_of(layout, rank)).groups[group], rank);
    assign_owners(layout.ranks);
  }

  const GlobalMatrix& of(const Fragment& fragment) const { return all[fragment.matrix]; }

 private:
  void add_rank(const GroupLayout& group, int rank) {
    std::vector<Fragment>& out = fragments.emplace_back();
    const Range owned = group.owned();
    std::size_t first = 0;
    for (const ParamSlice& slice : group.slices) {
      const ParamSpec& spec = *slice.spec;
      const MatrixBox whole = matrix_box(spec, full_box(spec.shape)), shard = matrix_box(spec, slice.box);
      const auto count = static_cast<std::size_t>(whole.stack.size());
      if (rank == 0) all.insert(all.end(), count, {.size = {whole.rows.size(), whole.columns.size()}});
      const Index elements = shard.rows.size() * shard.columns.size();
      for (Index i = 0; i < shard.stack.size(); ++i) {
        const std::size_t matrix = first + static_cast<std::size_t>(shard.stack.begin + i);
        all[matrix].holders.push_back(rank);
        const Index begin = slice.offset + i * elements;
        const Range flat{std::max(owned.begin, begin), std::min(owned.end, begin + elements)};
        if (flat.size() > 0)
          out.push_back(
              {matrix, shard.rows, shard.columns, {flat.begin - begin, flat.end - begin}, flat.begin - owned.begin});
      }
      first += count;
    }
  }

  // Assigns the largest matrices first, each to the holder with the fewest elements.
  void assign_owners(int ranks) {
    std::vector<std::size_t> order(all.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return all[i].size.elements(); });
    std::vector<Index> load(static_cast<std::size_t>(ranks)), offset(load);
    for (const std::size_t i : order) {
      all[i].owner = *std::ranges::min_element(all[i].holders, {}, [&](int rank) { return load[rank]; });
      load[all[i].owner] += all[i].size.elements();
    }
    for (GlobalMatrix& matrix : all) {
      matrix.offset = offset[matrix.owner];
      offset[matrix.owner] += matrix.size.elements();
    }
  }
};

// Runs of consecutive elements of a buffer. They lie one after the other in the buffer of shards.
struct Runs {
  struct Run {
    Index at, size;
  };
  std::vector<Run> all;

  void add(Index at, Index size) {
    if (!all.empty() && all.back().at + all.back().size == at)
      all.back().size += size;
    else
      all.push_back({at, size});
  }

  // Adds the elements of a fragment by their positions among the matrices of the owner.
  void add(const Fragment& f, const GlobalMatrix& matrix) {
    const Index columns = f.columns.size();
    for (Index at = f.local.begin; at < f.local.end;) {
      const Index row = at / columns, n = std::min(f.local.end, (row + 1) * columns) - at;
      add(matrix.offset + (f.rows.begin + row) * matrix.size.columns + f.columns.begin + at % columns, n);
      at += n;
    }
  }

  Index divisor(Index n) const {
    for (const Run& run : all) n = std::gcd(n, std::gcd(run.at, run.size));
    return n;
  }

  // Index of shards[i] = buffer[index[i]], in rows of `width`.
  std::vector<std::int32_t> gather(Index width) const {
    std::vector<std::int32_t> index;
    for (const Run& run : all)
      for (Index row = run.at / width; row < (run.at + run.size) / width; ++row)
        index.push_back(static_cast<std::int32_t>(row));
    return index;
  }
};

// Index of buffer[i] = shards[index[i]], from that of the other direction. rows: size of `buffer`.
std::vector<std::int32_t> inverse(const std::vector<std::int32_t>& gather, Index rows) {
  std::vector<std::int32_t> index(static_cast<std::size_t>(rows), -1);
  for (std::size_t i = 0; i < gather.size(); ++i)
    index[static_cast<std::size_t>(gather[i])] = static_cast<std::int32_t>(i);
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
  MatrixExchangePlan out;
  for (const GlobalMatrix& matrix : matrices.all)
    if (matrix.owner == rank) out.matrices.push_back(matrix.size);
  Runs shards, whole;
  for (int peer = 0; peer < layout.ranks; ++peer) {
    Index& to_peer = out.by_owner.emplace_back();
    for (const Fragment& f : matrices.fragments[rank])
      if (matrices.of(f).owner == peer) shards.add(f.owned_at, f.local.size()), to_peer += f.local.size();
    Index& from_peer = out.by_rank.emplace_back();
    for (const Fragment& f : matrices.fragments[peer])
      if (matrices.of(f).owner == rank) whole.add(f, matrices.of(f)), from_peer += f.local.size();
  }
  // The widest rows that no run, and no position of a run, cuts. The limit keeps many rows for the
  // threads of a device.
  constexpr Index max_width = 4096;
  const FlatLayout flat = flat_layout(specs, layout, coord_of(layout, rank));
  const GroupLayout& own = flat.groups[group];
  const Index owned = own.owned().size();
  out.width = whole.divisor(shards.divisor(std::gcd(owned, max_width)));
  const Index received = std::accumulate(out.by_rank.begin(), out.by_rank.end(), Index{0});
  constexpr Index max_rows = std::numeric_limits<std::int32_t>::max();
  if (const Index rows = std::max({owned, received, out.matrix_elements()}) / out.width; rows > max_rows)
    bad_input(
        "{} would move the matrices of rank {} in {} rows of {} elements, more than {}: use more ranks, or sizes "
        "of the model with a larger common divisor",
        update_rule(own.optimizer).name, rank, rows, out.width, max_rows);
  out.pack = shards.gather(out.width);
  out.unpack = inverse(out.pack, owned / out.width);
  out.disassemble = whole.gather(out.width);
  out.assemble = inverse(out.disassemble, out.matrix_elements() / out.width);
  return out;
}

}  // namespace sy
