// Attention in tiles, with an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022), so
// that no S x S matrix is stored. A query's result depends only on its own sequence, and never on
// the number of threads.
//
// FLOPs of a visible pair of query and key in one head:
//   forward    2 (hd + vd) for two products, and 24 for the softmax
//   backward   2 (3 hd + 2 vd) for five products, or 2 (4 hd + 3 vd) for seven, and 26 for P and dS
//
// A cap adds 27 in forward and 31 in backward, a bias 3. A sparse pattern costs as much as the full
// one, except for blocks that are hidden as a whole. Blocks of keys and queries stay in the caches,
// so the kernels are bound by the products. With one query per sequence they are bound by memory,
// because keys and values are read once.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "kernels/attention.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

namespace sy::cpu::attention {

// Blocks of keys and queries begin at multiples of these sizes from the start of the sequence. So
// the order of every sum depends on positions alone. The scores of a strip of tile_rows queries fit
// the L1 cache, and those of a block of queries fit the L2 cache.
constexpr Index key_block = 256;
constexpr Index query_block = round_up(96, tile_rows);

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

using Range = PositionRange<Index>;

// The vectors of one head, `stride` elements apart from token to token.
template <class T>
struct HeadRows {
  T* data;
  Index stride;
  Index first = 0;  // the position at `data`
  T* at(Index position) const { return data + (position - first) * stride; }
};
template <class T, class Byte>
HeadRows<T> rows_of(const BasicHeads<Byte>& x, Index b, Index head) {
  return {reinterpret_cast<T*>(x.data) + b * x.sequence_stride + head * x.head_stride, x.token_stride};
}

// The vectors of one head at `positions`, as floats: in the operand itself, or for bf16 widened
// into memory: [positions, width].
inline HeadRows<const float> floats_of(ConstHeads x, Index b, Index head, Range positions, float* memory) {
  if (x.dtype == DType::f32) return rows_of<const float>(x, b, head);
  const auto rows = rows_of<const Bf16>(x, b, head);
  for (Index i = positions.begin; i < positions.end; ++i)
    widen(rows.at(i), x.width, memory + (i - positions.begin) * x.width);
  return {memory, x.width, positions.begin};
}
// Sums of one head at `positions`: in the result itself, or for bf16 in memory until round_sums().
inline HeadRows<float> sums_of(Heads x, Index b, Index head, Range positions, float* memory) {
  if (x.dtype == DType::f32) return rows_of<float>(x, b, head);
  return {memory, x.width, positions.begin};
}
inline void round_sums(Heads x, Index b, Index head, Range positions, const HeadRows<float>& sums) {
  if (x.dtype == DType::f32) return;
  const auto rows = rows_of<Bf16>(x, b, head);
  for (Index i = positions.begin; i < positions.end; ++i) round(sums.at(i), x.width, rows.at(i));
}

// Positions from `from` on in a list of ascending positions, which -1 follow. The result may begin
// with -1, or be empty.
inline std::span<const std::int32_t> selected_from(std::span<const std::int32_t> list, Index from) {
  const auto less = [](std::int32_t key, Index value) { return key >= 0 && key < value; };
  return list.subspan(static_cast<std::size_t>(std::lower_bound(list.begin(), list.end(), from, less) - list.begin()));
}

// Sizes of a call and its attention mask.
struct AttentionProblem : MaskGeometry<Index> {
  AttentionDesc desc;
  Index B, H, K, hd, vd;
  bool is_bf16;   // true: vectors are bf16
  Index key_end;  // queries see no key from it on
  // [B, Sq], or nullptr
  const std::int32_t* document_start = numbers(desc.mask.document_start);
  const std::int32_t* prefix_end = numbers(desc.mask.prefix_end);
  // [B, Sq, num_selected] keys that queries see, or nullptr
  const std::int32_t* selected = numbers(desc.mask.selected);
  Index num_selected = selected ? desc.mask.selected.dim(2) : 0;
  // true: there is a bias, a sparse pattern or a selection
  bool has_bias_or_pattern = desc.bias || pattern || selected;

  AttentionProblem(const AttentionDesc& d, ConstHeads q, ConstHeads k, ConstHeads v)
      : MaskGeometry(d.mask, q.positions, k.positions),
        desc(d),
        B(q.sequences),
        H(q.heads),
        K(k.heads),
        hd(q.width),
        vd(v.width),
        is_bf16(q.dtype == DType::bf16),
        key_end(Sk) {}

  // The call for sequence b, with its own query offset and number of keys, if the mask has them.
  AttentionProblem of_sequence(Index b) const {
    AttentionProblem z = *this;
    if (desc.mask.query_offsets) z.query_offset = desc.mask.query_offsets.i32()[b];
    if (desc.mask.key_lengths) z.key_end = desc.mask.key_lengths.i32()[b];
    return z;
  }

  Index heads_per_kv() const { return H / K; }
  Index lse_offset(Index b, Index head) const { return (b * H + head) * Sq; }

  // Keys that query i of sequence b sees.
  Range keys(Index b, Index i) const {
    Range range = MaskGeometry::keys(i);
    if (document_start) range.begin = std::max<Index>(range.begin, document_start[b * Sq + i]);
    if (document_start && !is_causal()) range.end = std::min(range.end, document_end(b, document_start[b * Sq + i]));
    if (prefix_end) range.end = std::max<Index>(range.end, prefix_end[b * Sq + i]);
    range.end = std::min(range.end, key_end);
    return range;
  }
  // Position from which the sparse pattern of query i counts.
  Index origin(Index b, Index i) const { return document_start ? document_start[b * Sq + i] : 0; }
  // Whether a sparse pattern hides all of these keys from all queries of the range. It is false for
  // the first block that a query may see, in which sums begin.
  bool all_masked(Index b, Range queries, Range keys) const {
    if (!pattern || keys.begin <= this->keys(b, queries.end - 1).begin) return false;
    if (pattern.block > 0 && pattern.summary == 0) {
      const Index start = origin(b, queries.begin);
      return keys.end <= start + pattern.near(query_offset + queries.begin - start);
    }
    if (!pattern.is_local()) return false;
    // The first keys and queries of a document see all others, and are seen by them.
    const Index local_from = origin(b, queries.end - 1) + pattern.global, first = query_offset + queries.begin;
    const bool before = keys.end <= first - pattern.local + 1,
               after = first >= local_from && keys.begin >= query_offset + queries.end - 1 + pattern.local;
    return keys.begin >= local_from && (before || after);
  }
  // Selected keys of query i of sequence b, from position `from` on.
  std::span<const std::int32_t> selected_keys(Index b, Index i, Index from) const {
    const std::int32_t* const list = selected + (b * Sq + i) * num_selected;
    return selected_from({list, static_cast<std::size_t>(num_selected)}, from);
  }
  // Keys that some query of the range may see, without regard to a sparse pattern. Neither end
  // decreases from one query to the next.
  Range keys(Index b, Range queries) const { return {keys(b, queries.begin).begin, keys(b, queries.end - 1).end}; }
  // Queries from the first to the last that see some key of the range, without regard to key_end.
  // The range may be empty.
  Range queries(Index b, Range keys) const {
    Range range{std::min(MaskGeometry::queries(keys.begin).begin, Sq), MaskGeometry::queries(keys.end - 1).end};
    if (prefix_end) {
      const std::int32_t* const row = prefix_end + b * Sq;
      range.begin = std::upper_bound(row, row + range.begin, keys.begin) - row;
    }
    if (document_start) {
      const std::int32_t* const row = document_start + b * Sq;
      range.end = std::lower_bound(row, row + range.end, keys.end) - row;
      if (!is_causal()) range.begin = std::max<Index>(range.begin, row[keys.begin]);
    }
    return {range.begin, std::max(range.begin, range.end)};
  }

 private:
  static const std::int32_t* numbers(ConstView x) { return x ? x.i32() : nullptr; }
  // End of the document that begins at `start`.
  Index document_end(Index b, std::int32_t start) const {
    const std::int32_t* const row = document_start + b * Sq;
    return std::upper_bound(row, row + Sq, start) - row;
  }
};

// Calls body(range) for every block that overlaps `positions`, in order. A range begins with its
// block and ends at `end` or before.
template <class Body>
void for_blocks(Range positions, Index block, Index end, const Body& body) {
  if (positions.size() <= 0) return;
  for (Index begin = positions.begin / block * block; begin < positions.end; begin += block)
    body(Range{begin, std::min(begin + block, end)});
}

using LaneIndices = detail::Bits<Vector>::Type;

template <int... lane>
constexpr LaneIndices make_lane_indices(std::integer_sequence<int, lane...>) {
  return LaneIndices{lane...};
}
constexpr LaneIndices lane_indices = make_lane_indices(std::make_integer_sequence<int, simd_width>{});

// Cyclic shift: lane i becomes lane i + distance.
template <int distance, int... lane>
Vector rotated(Vector v, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(v, v, ((lane + distance) % simd_width)...);
}

// Combines all lanes. With distances simd_width/2, ..., 2, 1, every lane meets all others.
template <int distance = simd_width / 2, class Combine>
float reduced(Vector v, const Combine& combine) {
  if constexpr (distance == 0)
    return v[0];
  else
    return reduced<distance / 2>(combine(v, rotated<distance>(v, std::make_integer_sequence<int, simd_width>{})),
                                 combine);
}

inline Vector max(Vector x, Vector y) {
  return x > y ? x : y;
}
inline float max(Vector v) {
  return reduced(v, [](Vector x, Vector y) { return max(x, y); });
}
inline float sum(Vector v) {
  return reduced(v, [](Vector x, Vector y) { return x + y; });
}

inline float dot(const float* x, const float* y, Index n) {
  Vector products{};
  float rest = 0;
  Index i = 0;
  for (; i + simd_width <= n; i += simd_width) products += load(x + i) * load(y + i);
  for (; i < n; ++i) rest += x[i] * y[i];
  return sum(products) + rest;
}

// Computes scores from products: row[j] of a query and key first + j is scaled and capped. It
// becomes minus infinity if the key is not in `visible`. j < cols, a multiple of simd_width.
// Returns the largest score.
inline float finish_scores(const AttentionDesc& desc, Range visible, Index first, Index cols, float* row) {
  Vector largest = Vector{} + minus_infinity;
  const Vector cap = Vector{} + desc.softcap;
  // Columns that are visible.
  const auto begin = static_cast<std::int32_t>(std::max<Index>(visible.begin - first, 0));
  const auto end = static_cast<std::int32_t>(std::clamp<Index>(visible.end - first, 0, cols));
  for (Index j = 0; j < cols; j += simd_width) {
    Vector s = load(row + j) * desc.scale;
    if (desc.softcap > 0) s = cap * tanh_(s / cap);
    if (j < begin || j + simd_width > end) {
      const LaneIndices column = lane_indices + static_cast<std::int32_t>(j);
      s = (column >= begin) & (column < end) ? s : Vector{} + minus_infinity;
    }
    store(row + j, s);
    largest = max(largest, s);
  }
  return max(largest);
}

// Sets the scores of keys that a sparse pattern hides from one query to minus infinity. row[j]:
// score of key first + j. origin: position from which the pattern counts.
inline void mask_sparse(const SparsePattern& sparse, Index query, Index origin, Range keys, Index first, float* row) {
  const Index p = query - origin, near = std::min(origin + sparse.near(p), keys.end);
  const Index begin = std::max(keys.begin, origin + sparse.global);
  if (p < sparse.global) return;
  // Later keys, if attention is not causal.
  for (Index j = std::max(begin, query + std::max<Index>(sparse.local, 1)); j < keys.end; ++j)
    row[j - first] = minus_infinity;
  if (begin >= near) return;
  // Divisions are kept out of the loop.
  Index to_stride = sparse.stride > 0 ? (query - begin) % sparse.stride : -1;
  Index in_block = sparse.block > 0 ? (begin - origin) % sparse.block : 0;
  const Index summary = sparse.block > 0 ? sparse.block - sparse.summary : keys.end;
  for (Index j = begin; j < near; ++j) {
    if (to_stride != 0 && in_block < summary) row[j - first] = minus_infinity;
    if (--to_stride == -1) to_stride = sparse.stride - 1;
    if (++in_block == sparse.block) in_block = 0;
  }
}

// Sets the scores of keys that are not selected to minus infinity. selected: those of the query,
// from the first of `keys` on.
inline void mask_unselected(std::span<const std::int32_t> selected, Range keys, Index first, float* row) {
  auto next = selected.begin();
  for (Index j = keys.begin; j < keys.end; ++j)
    if (next != selected.end() && *next == j)
      ++next;
    else
      row[j - first] = minus_infinity;
}

// Like finish_scores, with the bias and the pattern of a call.
inline float finish_masked_scores(const AttentionProblem& z, Index b, Index head, Index query, Range visible,
                                  Index first, Index cols, float* row) {
  finish_scores(z.desc, visible, first, cols, row);
  const Index at = z.query_offset + query;
  const Range keys{std::max(visible.begin, first), std::min(visible.end, first + cols)};
  if (z.desc.bias) {
    const Index n = z.desc.bias.dim(1);
    const float* const bias = z.desc.bias.f32() + head * n + z.desc.bias_origin() - at;  // of key 0
    for (Index j = keys.begin; j < keys.end; ++j) row[j - first] += bias[j];
  }
  if (z.pattern) mask_sparse(z.pattern, at, z.origin(b, query), keys, first, row);
  if (z.selected) mask_unselected(z.selected_keys(b, query, keys.begin), keys, first, row);
  Vector largest = Vector{} + minus_infinity;
  for (Index j = 0; j < cols; j += simd_width) largest = max(largest, load(row + j));
  return max(largest);
}

// Scores of one query in one head for the keys in `visible`. row[j] contains the product with key
// first + j. Returns the largest score.
inline float row_scores(const AttentionProblem& z, Index b, Index head, Index query, Range visible, Index first,
                        Index cols, float* row) {
  return z.has_bias_or_pattern ? finish_masked_scores(z, b, head, query, visible, first, cols, row)
                               : finish_scores(z.desc, visible, first, cols, row);
}

// out[r, c] (+)= sum over l < k of left(r, l) right(l, c), r < rows, c < cols. Element left(r, l)
// is left[r * a_row + l * a_col]. `right` is packed in panels of tile_cols columns and `depth` >= k
// rows.
template <Index a_row, Index a_col>
void multiply(Index rows, Index k, const float* left, const float* right, Index depth, Index cols, float* out,
              Index out_stride, bool accumulate) {
  for (Index j = 0; j < cols; j += tile_cols) {
    Tiles<a_row, a_col>::run(rows, k, left, right + j * depth, tile_cols, out + j, out_stride,
                             std::min<Index>(tile_cols, cols - j), accumulate);
  }
}

// Softmax of one query over the keys that have been added so far.
struct RowState {
  float largest = minus_infinity;  // score
  float total = 0;                 // sum of exp(score - largest)

  // Replaces a row of scores by exp(score - largest). Returns the factor for all earlier
  // exponentials and their sums.
  float add(float* row, Index cols, float row_largest) {
    const float before = largest;
    largest = std::max(largest, row_largest);
    // Before the first key, all exponentials are 0.
    const float shift = largest == minus_infinity ? 0.0f : largest;
    Vector row_total{};
    for (Index j = 0; j < cols; j += simd_width) {
      const Vector p = exp_(load(row + j) - shift);
      store(row + j, p);
      row_total += p;
    }
    const float shrink = exp_(before - shift);
    total = total * shrink + sum(row_total);
    return shrink;
  }
};

// Forward of calls with one query per sequence, in attention_decode.cpp.
void decode(const AttentionProblem& z, ConstHeads q, ConstHeads k, ConstHeads v, Heads out, float* lse);

}  // namespace sy::cpu::attention
