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
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <omp.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

namespace sy::cpu {
namespace {

// Blocks of keys and queries begin at multiples of these sizes from the start of the sequence. So
// the order of every sum depends on positions alone. The scores of a strip of tile_rows queries fit
// the L1 cache, and those of a block of queries fit the L2 cache.
constexpr Index key_block = 256;
constexpr Index query_block = round_up(96, tile_rows);

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// Positions [begin, end).
struct Range {
  Index begin, end;
  Index size() const { return end - begin; }
};

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
HeadRows<const float> floats_of(ConstHeads x, Index b, Index head, Range positions, float* memory) {
  if (x.dtype == DType::f32) return rows_of<const float>(x, b, head);
  const auto rows = rows_of<const Bf16>(x, b, head);
  for (Index i = positions.begin; i < positions.end; ++i)
    widen(rows.at(i), x.width, memory + (i - positions.begin) * x.width);
  return {memory, x.width, positions.begin};
}
// Sums of one head at `positions`: in the result itself, or for bf16 in memory until round_sums().
HeadRows<float> sums_of(Heads x, Index b, Index head, Range positions, float* memory) {
  if (x.dtype == DType::f32) return rows_of<float>(x, b, head);
  return {memory, x.width, positions.begin};
}
void round_sums(Heads x, Index b, Index head, Range positions, const HeadRows<float>& sums) {
  if (x.dtype == DType::f32) return;
  const auto rows = rows_of<Bf16>(x, b, head);
  for (Index i = positions.begin; i < positions.end; ++i) round(sums.at(i), x.width, rows.at(i));
}

// Sizes of a call and its attention mask.
struct AttentionProblem {
  AttentionDesc desc;
  Index B, queries_all, keys_all, H, K, hd, vd;
  const std::int32_t* document_start;  // [B, queries_all], or nullptr
  bool has_bias_or_pattern;            // true: there is a bias or a sparse pattern
  bool is_bf16;                        // true: vectors are bf16

  AttentionProblem(const AttentionDesc& d, ConstHeads q, ConstHeads k, ConstHeads v)
      : desc(d),
        B(q.sequences),
        queries_all(q.positions),
        keys_all(k.positions),
        H(q.heads),
        K(k.heads),
        hd(q.width),
        vd(v.width),
        document_start(d.mask.document_start ? d.mask.document_start.i32() : nullptr),
        has_bias_or_pattern(d.bias || d.mask.sparse),
        is_bf16(q.dtype == DType::bf16) {}

  // The call for sequence b, with its own query offset if AttentionMask::query_offsets is not
  // empty.
  AttentionProblem of_sequence(Index b) const {
    AttentionProblem z = *this;
    if (z.desc.mask.query_offsets) z.desc.mask.query_offset = z.desc.mask.query_offsets.i32()[b];
    return z;
  }

  Index heads_per_kv() const { return H / K; }
  Index lse_offset(Index b, Index head) const { return (b * H + head) * queries_all; }

  // Keys that query i of sequence b sees.
  Range keys(Index b, Index i) const {
    const AttentionMask& mask = desc.mask;
    const Index at = mask.query_offset + i;
    Range range{mask.window > 0 ? std::max<Index>(0, at - mask.window + 1) : 0,
                mask.causal ? std::min(at + 1, keys_all) : keys_all};
    if (document_start) range.begin = std::max<Index>(range.begin, document_start[b * queries_all + i]);
    return range;
  }
  // Position from which the sparse pattern of query i counts.
  Index origin(Index b, Index i) const { return document_start ? document_start[b * queries_all + i] : 0; }
  // Whether a sparse pattern hides all of these keys from all queries of the range. It is false for
  // the first block that a query may see, in which sums begin.
  bool all_masked(Index b, Range queries, Range keys) const {
    const SparsePattern& sparse = desc.mask.sparse;
    if (!sparse || sparse.stride > 0 || sparse.block > 0) return false;
    return keys.begin > this->keys(b, queries.end - 1).begin &&
           keys.begin >= origin(b, queries.end - 1) + sparse.global &&
           keys.end <= desc.mask.query_offset + queries.begin - sparse.local + 1;
  }
  // Keys that some query of the range may see, without regard to a sparse pattern. Neither end
  // decreases from one query to the next.
  Range keys(Index b, Range queries) const { return {keys(b, queries.begin).begin, keys(b, queries.end - 1).end}; }
  // Queries from the first to the last that see some key of the range. The range may be empty.
  Range queries(Index b, Range keys) const {
    const AttentionMask& mask = desc.mask;
    const auto within = [&](Index i) { return std::clamp<Index>(i, 0, queries_all); };
    Range range{mask.causal ? within(keys.begin - mask.query_offset) : 0,
                mask.window > 0 ? within(keys.end - 1 + mask.window - mask.query_offset) : queries_all};
    if (document_start) {
      const std::int32_t* const row = document_start + b * queries_all;
      range.end = std::lower_bound(row, row + range.end, keys.end) - row;
    }
    return {range.begin, std::max(range.begin, range.end)};
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

// Cyclic shift: lane i becomes lane i + distance. With distances simd_width/2, ..., 2, 1, every
// lane meets all others.
Vector rotated(Vector v, int distance) {
  return __builtin_shuffle(v, (lane_indices + distance) & (simd_width - 1));
}

Vector max(Vector x, Vector y) {
  return x > y ? x : y;
}
float max(Vector v) {
#pragma GCC unroll 4
  for (int distance = simd_width / 2; distance > 0; distance /= 2) v = max(v, rotated(v, distance));
  return v[0];
}
float sum(Vector v) {
#pragma GCC unroll 4
  for (int distance = simd_width / 2; distance > 0; distance /= 2) v += rotated(v, distance);
  return v[0];
}

float dot(const float* x, const float* y, Index n) {
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
float finish_scores(const AttentionDesc& desc, Range visible, Index first, Index cols, float* row) {
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
void mask_sparse(const SparsePattern& sparse, Index query, Index origin, Range keys, Index first, float* row) {
  const Index p = query - origin, near = std::min(origin + sparse.near(p), keys.end);
  const Index begin = std::max(keys.begin, origin + sparse.global);
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

// Like finish_scores, with the bias and the pattern of a call.
float finish_masked_scores(const AttentionProblem& z, Index b, Index head, Index query, Range visible, Index first,
                           Index cols, float* row) {
  finish_scores(z.desc, visible, first, cols, row);
  const Index at = z.desc.mask.query_offset + query;
  const Range keys{std::max(visible.begin, first), std::min(visible.end, first + cols)};
  if (z.desc.bias) {
    const Index n = z.desc.bias.dim(1);
    const float* const bias = z.desc.bias.f32() + head * n + n - 1 - at;  // of key 0
    for (Index j = keys.begin; j < keys.end; ++j) row[j - first] += bias[j];
  }
  if (z.desc.mask.sparse) mask_sparse(z.desc.mask.sparse, at, z.origin(b, query), keys, first, row);
  Vector largest = Vector{} + minus_infinity;
  for (Index j = 0; j < cols; j += simd_width) largest = max(largest, load(row + j));
  return max(largest);
}

// Scores of one query in one head for the keys in `visible`. row[j] contains the product with key
// first + j. Returns the largest score.
float row_scores(const AttentionProblem& z, Index b, Index head, Index query, Range visible, Index first, Index cols,
                 float* row) {
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

// ---- forward ----

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

// Forward of a range of queries in all `heads` heads that read one kv head. They share the packing
// of its keys.
void forward_task(const AttentionProblem& call, Index b, Index kv_head, Range queries, ConstHeads q, ConstHeads k,
                  ConstHeads v, Heads out, float* lse) {
  const AttentionProblem z = call.of_sequence(b);
  thread_local Buffer buffer;
  thread_local std::vector<RowState> states;  // [heads, rows]
  const Index hd = z.hd, vd = z.vd, heads = z.heads_per_kv();
  const Index rows = round_up(queries.size(), tile_rows);
  // Size of the vectors that are widened together.
  const Index widened_size = std::max(queries.size(), key_block) * std::max(hd, vd);
  float* q_panels = buffer.reserve(heads * rows * hd + key_block * (hd + round_up(vd, tile_cols) + tile_rows) +
                                   3 * simd_width + (z.is_bf16 ? widened_size + heads * queries.size() * vd : 0));
  float* k_panels = q_panels + heads * rows * hd + simd_width;
  float* v_panels = k_panels + key_block * hd + simd_width;
  // [tile_rows, key_block]
  float* scores = v_panels + key_block * round_up(vd, tile_cols) + simd_width;
  float* widened = scores + key_block * tile_rows;
  float* head_vectors = widened + widened_size;  // [heads, queries, vd]
  const auto sums_of_head = [&](Index h) {
    return sums_of(out, b, kv_head * heads + h, queries, head_vectors + h * queries.size() * vd);
  };
  states.assign(heads * rows, {});

  for (Index h = 0; h < heads; ++h) {
    // A sink is a first score without a value.
    if (z.desc.sinks)
      std::fill_n(states.begin() + h * rows, rows, RowState{z.desc.sinks.f32()[kv_head * heads + h], 1});
    const HeadRows<const float> query_rows = floats_of(q, b, kv_head * heads + h, queries, widened);
    pack<tile_rows>(query_rows.at(queries.begin), query_rows.stride, 1, queries.size(), hd, q_panels + h * rows * hd);
  }
  for_blocks(z.keys(b, queries), key_block, z.keys_all, [&](Range keys) {
    const HeadRows<const float> key_rows = floats_of(k, b, kv_head, keys, widened);
    pack<tile_cols>(key_rows.at(keys.begin), key_rows.stride, 1, keys.size(), hd, k_panels);
    const HeadRows<const float> value_rows = floats_of(v, b, kv_head, keys, widened);
    pack<tile_cols>(value_rows.at(keys.begin), 1, value_rows.stride, vd, keys.size(), v_panels);
    for (Index h = 0; h < heads; ++h) {
      const HeadRows<float> sums = sums_of_head(h);
      for (Index i = queries.begin; i < queries.end; i += tile_rows) {
        const Range strip{i, std::min(i + tile_rows, queries.end)};
        const Range strip_keys = z.keys(b, strip);
        if (strip_keys.end <= keys.begin || strip_keys.begin >= keys.end || z.all_masked(b, strip, keys)) continue;
        const bool begun = strip_keys.begin < keys.begin;                    // in an earlier block
        const Index used = std::min(strip_keys.end, keys.end) - keys.begin;  // of the block's keys
        const Index cols = round_up(used, simd_width);
        const Index row = h * rows + i - queries.begin;
        multiply<1, tile_rows>(strip.size(), hd, q_panels + row * hd, k_panels, hd, cols, scores, key_block, false);
        for (Index r = 0; r < strip.size(); ++r) {
          float* of_row = scores + r * key_block;
          const float largest =
              row_scores(z, b, kv_head * heads + h, i + r, z.keys(b, i + r), keys.begin, cols, of_row);
          const float shrink = states[row + r].add(of_row, cols, largest);
          if (begun && shrink != 1.0f)
            for (Index c = 0; c < vd; ++c) sums.at(i + r)[c] *= shrink;
        }
        multiply<key_block, 1>(strip.size(), used, scores, v_panels, keys.size(), vd, sums.at(i), sums.stride, begun);
      }
    }
  });
  for (Index h = 0; h < heads; ++h) {
    const Index head = kv_head * heads + h;
    const HeadRows<float> sums = sums_of_head(h);
    for (Index i = queries.begin; i < queries.end; ++i) {
      const RowState& state = states[h * rows + i - queries.begin];
      const float factor = 1.0f / state.total;
      float* row = sums.at(i);
      for (Index c = 0; c < vd; ++c) row[c] *= factor;
      lse[z.lse_offset(b, head) + i] = state.largest + std::log(state.total);
    }
    round_sums(out, b, head, queries, sums);
  }
}

// ---- forward, one query per sequence ----
//
// The keys of a sequence are divided into blocks that begin at multiples of decode_block. Each
// block is a task for all heads, so that memory is read contiguously. The partial softmaxes of the
// blocks are combined in order. A visible pair of query and key costs 2 (hd + vd) + 26 FLOPs in one
// head, and 4 (hd + vd) bytes for all heads of a kv head.
constexpr Index decode_block = 64;

struct DecodeTask {
  Index b;
  Range keys;
};

// products[h * stride + i] = queries[h] . keys[i], for the queries of N heads and `simd_width`
// keys. It processes as many keys at a time as registers hold sums for.
template <int N>
void multiply_keys(const float* const* queries, const float* const (&keys)[simd_width], Index hd, float* products,
                   Index stride) {
  constexpr int keys_at_once = 4;
  Vector sum[N][simd_width] = {};
  const Index full_width = hd / simd_width * simd_width;
#pragma GCC unroll 4
  for (int first = 0; first < simd_width; first += keys_at_once) {
    Vector partial[N][keys_at_once] = {};
    for (Index c = 0; c < full_width; c += simd_width) {
      Vector x[N];
#pragma GCC unroll 4
      for (int h = 0; h < N; ++h) x[h] = load(queries[h] + c);
#pragma GCC unroll 4
      for (int i = 0; i < keys_at_once; ++i) {
        const Vector key = load(keys[first + i] + c);
#pragma GCC unroll 4
        for (int h = 0; h < N; ++h) partial[h][i] += x[h] * key;
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
      for (int i = 0; i < keys_at_once; ++i) sum[h][first + i] = partial[h][i];
  }
#pragma GCC unroll 4
  for (int h = 0; h < N; ++h) {
    transpose(sum[h]);  // now lane i of all vectors belongs to key i
    Vector all{};
#pragma GCC unroll 16
    for (int i = 0; i < simd_width; ++i) all += sum[h][i];
    for (Index c = full_width; c < hd; ++c)
      for (int i = 0; i < simd_width; ++i) all[i] += queries[h][c] * keys[i][c];
    store(products + h * stride, all);
  }
}

// sums[h * width + c] += the sum over i < n, in order, of weights[h * decode_block + i] *
// rows.at(first + i)[c], h < heads.
void add_values(Index heads, Index n, const float* weights, const HeadRows<const float>& rows, Index first, Index width,
                float* sums) {
  constexpr int wide = 4;  // vectors: enough sums to hide the latency of an addition
  const float* const values = rows.at(first);
  Index c = 0;
  for (; heads <= 2 && c + wide * simd_width <= width; c += wide * simd_width)
    (heads == 1 ? tile<1, wide, decode_block, 1> : tile<2, wide, decode_block, 1>)(n, weights, values + c, rows.stride,
                                                                                   sums + c, width, wide * simd_width,
                                                                                   true, {});
  const Index begin = c;
  for (Index h = 0; h < heads; h += tile_rows) {
    const Index count = std::min<Index>(tile_rows, heads - h);
    for (c = begin; c + simd_width <= width;) {
      const Index cols = std::min<Index>((width - c) / simd_width * simd_width, tile_cols);
      Tiles<decode_block, 1>::run(count, n, weights + h * decode_block, values + c, rows.stride, sums + h * width + c,
                                  width, cols, true);
      c += cols;
    }
  }
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < n; ++i)
      for (Index rest = c; rest < width; ++rest)
        sums[h * width + rest] += weights[h * decode_block + i] * values[i * rows.stride + rest];
}

// Prefetches the vectors of a position, of all heads.
void prefetch(ConstHeads x, Index b, Index position) {
  const std::byte* const row = x.data + (b * x.sequence_stride + position * x.token_stride) * size_of(x.dtype);
  for (Index byte = 0; byte < x.heads * x.width * size_of(x.dtype); byte += 64) __builtin_prefetch(row + byte, 0, 2);
}

// Contribution of a block of keys to its sequence's query. state: [H]; sums: [H, vd] of values
// times exponentials.
void decode_task(const AttentionProblem& call, const DecodeTask& task, ConstHeads q, ConstHeads k, ConstHeads v,
                 RowState* state, float* sums) {
  const AttentionProblem z = call.of_sequence(task.b);
  thread_local Buffer buffer;
  const Index heads = z.heads_per_kv(), n = task.keys.size();
  float* const scores =
      buffer.reserve(z.H * decode_block + (z.is_bf16 ? z.H * z.hd + decode_block * std::max(z.hd, z.vd) : 0));
  float* const head_vectors = scores + z.H * decode_block;  // [H, hd] the query
  float* const widened = head_vectors + z.H * z.hd;
  for (Index head = 0; z.is_bf16 && head < z.H; ++head) floats_of(q, task.b, head, {0, 1}, head_vectors + head * z.hd);
  const auto query_of = [&](Index head) {
    return z.is_bf16 ? head_vectors + head * z.hd : rows_of<const float>(q, task.b, head).at(0);
  };
  constexpr int together = 3;  // of heads
  for (Index j = 0; j < n; j += simd_width)
    for (Index kv_head = 0; kv_head < z.K; ++kv_head) {
      const Range these{task.keys.begin + j, task.keys.begin + std::min(j + simd_width, n)};
      const HeadRows<const float> rows = floats_of(k, task.b, kv_head, these, widened);
      const float* keys[simd_width];
      for (int i = 0; i < simd_width; ++i) keys[i] = rows.at(std::min(these.begin + i, these.end - 1));
      // Prefetches the next keys and the values of these, a share for each kv head. It reads whole
      // rows in the order of memory.
      for (Index i = kv_head * simd_width / z.K; i < (kv_head + 1) * simd_width / z.K; ++i) {
        prefetch(k, task.b, task.keys.begin + std::min(j + simd_width + i, n - 1));
        prefetch(v, task.b, task.keys.begin + std::min(j + i, n - 1));
      }
      for (Index head = kv_head * heads, end = head + heads; head < end;) {
        const float* queries[together];
        const Index count = std::min<Index>(together, end - head);
        for (Index h = 0; h < count; ++h) queries[h] = query_of(head + h);
        constexpr decltype(&multiply_keys<1>) by_count[] = {multiply_keys<1>, multiply_keys<2>, multiply_keys<3>};
        by_count[count - 1](queries, keys, z.hd, scores + head * decode_block + j, decode_block);
        head += count;
      }
    }
  for (Index head = 0; head < z.H; ++head) {
    float* const row = scores + head * decode_block;
    const Index cols = round_up(n, simd_width);
    state[head] = {};
    state[head].add(row, cols, row_scores(z, task.b, head, 0, task.keys, task.keys.begin, cols, row));
  }
  std::fill_n(sums, z.H * z.vd, 0.0f);
  for (Index kv_head = 0; kv_head < z.K; ++kv_head)
    add_values(heads, n, scores + kv_head * heads * decode_block, floats_of(v, task.b, kv_head, task.keys, widened),
               task.keys.begin, z.vd, sums + kv_head * heads * z.vd);
}

// Combines the results of tasks [first, first + count) of one sequence in one head, and its sink.
void combine_blocks(const AttentionProblem& z, Index head, Index first, Index count, const RowState* states,
                    const float* sums, float* out, float& lse) {
  RowState all;
  const float sink = z.desc.sinks ? z.desc.sinks.f32()[head] : minus_infinity;
  all.largest = sink;
  for (Index t = first; t < first + count; ++t) all.largest = std::max(all.largest, states[t * z.H + head].largest);
  all.total = std::exp(sink - all.largest);
  std::fill_n(out, z.vd, 0.0f);
  for (Index t = first; t < first + count; ++t) {
    const float weight = std::exp(states[t * z.H + head].largest - all.largest);
    all.total += weight * states[t * z.H + head].total;
    const float* const partial = sums + (t * z.H + head) * z.vd;
    for (Index c = 0; c < z.vd; ++c) out[c] += weight * partial[c];
  }
  const float factor = 1.0f / all.total;
  for (Index c = 0; c < z.vd; ++c) out[c] *= factor;
  lse = all.largest + std::log(all.total);
}

void decode(const AttentionProblem& z, ConstHeads q, ConstHeads k, ConstHeads v, Heads out, float* lse) {
  // The memory of these variables is reused.
  thread_local std::vector<DecodeTask> tasks;
  thread_local std::vector<Index> first_task;  // [B + 1]
  thread_local std::vector<RowState> states;   // [tasks, H]
  thread_local Buffer buffer;
  tasks.clear();
  first_task.clear();
  for (Index b = 0; b < z.B; ++b) {
    first_task.push_back(std::ssize(tasks));
    const AttentionProblem of = z.of_sequence(b);
    const Range visible_keys = of.keys(b, Index{0});
    for_blocks(visible_keys, decode_block, visible_keys.end, [&](Range block) {
      const Range keys{std::max(block.begin, visible_keys.begin), block.end};
      if (!of.all_masked(b, {0, 1}, keys)) tasks.push_back({b, keys});
    });
  }
  const Index count = std::ssize(tasks);
  first_task.push_back(count);
  states.resize(static_cast<std::size_t>(count * z.H));
  const DecodeTask* const task = tasks.data();
  const Index* const first = first_task.data();
  RowState* const state = states.data();
  float* const sums = buffer.reserve(count * z.H * z.vd);
#pragma omp parallel if (count > 1)
  {
#pragma omp for schedule(dynamic)
    for (Index t = 0; t < count; ++t) decode_task(z, task[t], q, k, v, state + t * z.H, sums + t * z.H * z.vd);
#pragma omp for schedule(static)
    for (Index row = 0; row < z.B * z.H; ++row) {
      const Index b = row / z.H, head = row % z.H;
      thread_local Buffer of_row;
      const HeadRows<float> to = sums_of(out, b, head, {0, 1}, of_row.reserve(z.vd));
      combine_blocks(z, head, first[b], first[b + 1] - first[b], state, sums, to.at(0), lse[z.lse_offset(b, head)]);
      round_sums(out, b, head, {0, 1}, to);
    }
  }
}

// ---- backward ----
//
// With P = exp(score - lse) and D_i = dout_i . out_i:
//   dV = P^T dout,  dP = dout V^T,  dQ = dS K,  dK = dS^T Q.
// The matrix dS is P (dP - D) times the scale and the derivative of the cap.

struct Gradients {
  ConstHeads dout, q, k, v, out;
  const float* lse;
  Heads dq, dk, dv;
};

// A thread's memory for one block of keys and one of queries. "left" and "right" are operands of
// multiply().
struct Workspace {
  float *k_right, *v_right;     // [hd, keys] of Q K^T, [vd, keys] of dout V^T
  float* k_rows_right;          // [keys, hd] of dS K
  float *q_left, *dout_left;    // [queries, hd] of Q K^T, [queries, vd] of dout V^T
  float *q_right, *dout_right;  // [queries, hd] of dS^T Q, [queries, vd] of P^T dout
  float *p, *ds;                // [query_block, key_block]
  float* delta;                 // [query_block]: D
  // For bf16: widened operands, and sums before they are rounded. dq: [heads, dq_rows, hd].
  float *q, *dout, *out, *k, *v, *dq, *dk, *dv;

  Workspace(const AttentionProblem& z, Index dq_rows) {
    const Index hd = z.hd, vd = z.vd, queries = z.is_bf16 ? query_block : 0, keys = z.is_bf16 ? key_block : 0;
    thread_local Buffer buffer;
    const Index hd_panels = round_up(hd, tile_cols), vd_panels = round_up(vd, tile_cols);
    const std::pair<float**, Index> buffers[] = {{&k_right, key_block * hd},
                                                 {&v_right, key_block * vd},
                                                 {&k_rows_right, key_block * hd_panels},
                                                 {&q_left, query_block * hd},
                                                 {&dout_left, query_block * vd},
                                                 {&q_right, query_block * hd_panels},
                                                 {&dout_right, query_block * vd_panels},
                                                 {&p, query_block * key_block},
                                                 {&ds, query_block * key_block},
                                                 {&delta, query_block},
                                                 {&q, queries * hd},
                                                 {&dout, queries * vd},
                                                 {&out, queries * vd},
                                                 {&k, keys * hd},
                                                 {&v, keys * vd},
                                                 {&dq, z.is_bf16 ? z.heads_per_kv() * dq_rows * hd : 0},
                                                 {&dk, keys * hd},
                                                 {&dv, keys * vd}};
    // pack() writes beyond its size
    const auto padded = [](Index size) { return round_up(size + simd_width, 16); };
    Index floats = 0;
    for (const auto& [pointer, size] : buffers) floats += padded(size);
    float* next = buffer.reserve(floats);
    for (const auto& [pointer, size] : buffers) {
      *pointer = next;
      next += padded(size);
    }
  }
};

class Backward {
 public:
  // of: queries whose dQ is computed.
  Backward(const AttentionProblem& call, const Gradients& tensors, Index b, Index kv_head, Range of = {0, 0})
      : z(call), t(tensors), b_(b), kv_head_(kv_head), queries_(of), w(call, of.size()) {}

  // dK and dV of one block of keys from all queries that see it. If want_dq, it also adds to dQ.
  void keys_task(Range keys, bool want_dq) {
    dk_ = sums_of(t.dk, b_, kv_head_, keys, w.dk);
    dv_ = sums_of(t.dv, b_, kv_head_, keys, w.dv);
    clear_masked(keys);
    pack_keys(keys);
    for (Index head = first_head(); head < end_head(); ++head)
      for_blocks(z.queries(b_, keys), query_block, z.queries_all,
                 [&](Range queries) { tile(head, queries, keys, want_dq, true); });
    round_sums(t.dk, b_, kv_head_, keys, dk_);
    round_sums(t.dv, b_, kv_head_, keys, dv_);
  }
  // Rounds dQ after the last block of keys.
  void finish_dq() {
    for (Index head = first_head(); head < end_head(); ++head) round_sums(t.dq, b_, head, queries_, dq_of(head));
  }
  // Bias gradient of one head: dbias[n - 1 - distance] += the sums of dS / scale by distance.
  void bias_task(Index head, Index n, float* dbias) {
    const float factor = 1.0f / z.desc.scale;
    for_blocks({0, z.keys_all}, key_block, z.keys_all, [&](Range keys) {
      pack_keys(keys);
      for_blocks(z.queries(b_, keys), query_block, z.queries_all, [&](Range queries) {
        if (!tile(head, queries, keys, false, false)) return;
        for (Index i = queries.begin; i < queries.end; ++i) {
          const Range visible_keys = z.keys(b_, i);
          const float* const ds = w.ds + (i - queries.begin) * key_block - keys.begin;
          float* const to = dbias + n - 1 - (z.desc.mask.query_offset + i);
          for (Index j = std::max(visible_keys.begin, keys.begin); j < std::min(visible_keys.end, keys.end); ++j)
            to[j] += factor * ds[j];
        }
      });
    });
  }
  // dQ of one block of queries from all keys that they see.
  void queries_task() {
    for_blocks(z.keys(b_, queries_), key_block, z.keys_all, [&](Range keys) {
      pack_keys(keys);
      for (Index head = first_head(); head < end_head(); ++head) tile(head, queries_, keys, true, false);
    });
    finish_dq();
  }

 private:
  Index first_head() const { return kv_head_ * z.heads_per_kv(); }
  Index end_head() const { return first_head() + z.heads_per_kv(); }

  HeadRows<float> dq_of(Index head) const {
    return sums_of(t.dq, b_, head, queries_, w.dq + (head - first_head()) * queries_.size() * z.hd);
  }

  // Calls body(strip) for each strip of a block of keys, in order.
  template <class Body>
  static void for_strips(Range keys, const Body& body) {
    for (Index j = keys.begin; j < keys.end; j += tile_rows) body(Range{j, std::min(j + tile_rows, keys.end)});
  }

  // Clears the gradients of strips that no query sees, because no tile writes them.
  void clear_masked(Range keys) {
    for_strips(keys, [&](Range strip) {
      if (z.queries(b_, strip).size() > 0) return;
      for (Index j = strip.begin; j < strip.end; ++j) {
        std::fill_n(dk_.at(j), z.hd, 0.0f);
        std::fill_n(dv_.at(j), z.vd, 0.0f);
      }
    });
  }

  void pack_keys(Range keys) {
    const HeadRows<const float> k = floats_of(t.k, b_, kv_head_, keys, w.k),
                                v = floats_of(t.v, b_, kv_head_, keys, w.v);
    pack<tile_cols>(k.at(keys.begin), k.stride, 1, keys.size(), z.hd, w.k_right);
    pack<tile_cols>(v.at(keys.begin), v.stride, 1, keys.size(), z.vd, w.v_right);
    pack<tile_cols>(k.at(keys.begin), 1, k.stride, z.hd, keys.size(), w.k_rows_right);
  }

  // Adds the contributions of a block of queries of one head and the packed block of keys to each
  // other's gradients. Every gradient adds its blocks in an order that depends on positions alone.
  // Its sum begins at the first block that contributes to it. Returns whether some query may see
  // some key; w.ds then holds dS.
  bool tile(Index head, Range queries, Range keys, bool want_dq, bool want_dkv) {
    if (z.all_masked(b_, queries, keys)) return false;
    const HeadRows<const float> q = floats_of(t.q, b_, head, queries, w.q),
                                dout = floats_of(t.dout, b_, head, queries, w.dout),
                                out = floats_of(t.out, b_, head, queries, w.out);
    pack<tile_rows>(q.at(queries.begin), q.stride, 1, queries.size(), z.hd, w.q_left);
    pack<tile_rows>(dout.at(queries.begin), dout.stride, 1, queries.size(), z.vd, w.dout_left);
    for (Index i = 0; i < queries.size(); ++i)
      w.delta[i] = dot(dout.at(queries.begin + i), out.at(queries.begin + i), z.vd);
    for (Index i = queries.begin; i < queries.end; i += tile_rows)
      query_strip(head, {i, std::min(i + tile_rows, queries.end)}, i - queries.begin, keys, want_dq);
    if (!want_dkv) return true;
    pack<tile_cols>(q.at(queries.begin), 1, q.stride, z.hd, queries.size(), w.q_right);
    pack<tile_cols>(dout.at(queries.begin), 1, dout.stride, z.vd, queries.size(), w.dout_right);
    for_strips(keys, [&](Range strip) { key_strip(head, queries, strip, strip.begin - keys.begin); });
    return true;
  }

  // P, dS and dQ of a strip of queries, which begins at row `row` of their block.
  void query_strip(Index head, Range strip, Index row, Range keys, bool want_dq) {
    float* p = w.p + row * key_block;
    float* ds = w.ds + row * key_block;
    const Range strip_keys = z.keys(b_, strip);
    if (strip_keys.end <= keys.begin || strip_keys.begin >= keys.end || z.all_masked(b_, strip, keys)) {
      std::fill_n(p, strip.size() * key_block, 0.0f);
      std::fill_n(ds, strip.size() * key_block, 0.0f);
      return;
    }
    const Index used = std::min(strip_keys.end, keys.end) - keys.begin, cols = round_up(used, simd_width);
    multiply<1, tile_rows>(strip.size(), z.hd, w.q_left + row * z.hd, w.k_right, z.hd, cols, p, key_block, false);
    multiply<1, tile_rows>(strip.size(), z.vd, w.dout_left + row * z.vd, w.v_right, z.vd, cols, ds, key_block, false);
    for (Index r = 0; r < strip.size(); ++r)
      finish_row(head, strip.begin + r, t.lse[z.lse_offset(b_, head) + strip.begin + r], w.delta[row + r], keys.begin,
                 cols, p + r * key_block, ds + r * key_block);
    if (!want_dq) return;
    const bool begun = strip_keys.begin < keys.begin;
    const HeadRows<float> dq = dq_of(head);
    multiply<key_block, 1>(strip.size(), used, ds, w.k_rows_right, keys.size(), z.hd, dq.at(strip.begin), dq.stride,
                           begun);
  }

  // Computes P and dS from the products in p and ds. Both are zero from `cols` on.
  void finish_row(Index head, Index query, float lse, float delta, Index first, Index cols, float* p, float* ds) {
    row_scores(z, b_, head, query, z.keys(b_, query), first, cols, p);
    const float cap = z.desc.softcap;
    for (Index j = 0; j < cols; j += simd_width) {
      const Vector score = load(p + j);
      const Vector probability = exp_(score - lse);
      Vector gradient = probability * (load(ds + j) - delta) * z.desc.scale;
      if (cap > 0) {
        // The cap's derivative is 1 - tanh^2. A masked score is infinite. It is bounded, so that it
        // gives 0 and no NaN.
        const Vector tanh = at_least(score, -cap) / cap;
        gradient *= 1.0f - tanh * tanh;
      }
      store(p + j, probability);
      store(ds + j, gradient);
    }
    std::fill(p + cols, p + key_block, 0.0f);
    std::fill(ds + cols, ds + key_block, 0.0f);
  }

  // dK and dV of a strip of keys, which begins at column `column` of their block.
  void key_strip(Index head, Range queries, Range strip, Index column) {
    const Range strip_queries = z.queries(b_, strip);
    if (strip_queries.size() == 0) return;
    const Index skipped = std::max<Index>(strip_queries.begin - queries.begin, 0);
    if (skipped >= queries.size()) return;
    const bool begun = head > first_head() || strip_queries.begin / query_block * query_block < queries.begin;
    const auto add = [&](const float* left, const float* right, Index width, const HeadRows<float>& to) {
      multiply<1, key_block>(strip.size(), queries.size() - skipped, left + skipped * key_block + column,
                             right + skipped * tile_cols, queries.size(), width, to.at(strip.begin), to.stride, begun);
    };
    add(w.ds, w.q_right, z.hd, dk_);
    add(w.p, w.dout_right, z.vd, dv_);
  }

  const AttentionProblem& z;
  const Gradients& t;
  const Index b_, kv_head_;
  const Range queries_;
  Workspace w;
  HeadRows<float> dk_{}, dv_{};
};

}  // namespace

void CpuBackend::do_attention_forward(const AttentionDesc& desc, ConstHeads q, ConstHeads k, ConstHeads v, View out,
                                      View lse) {
  const AttentionProblem z(desc, q, k, v);
  if (desc.mask.query_offsets && z.queries_all == 1) return decode(z, q, k, v, out, lse.f32());
  // A range of queries shares the packing of its keys, and should stay in the L2 cache.
  const Index pairs = z.B * z.K, S = z.queries_all, threads = omp_get_max_threads();
  const Index even = pairs * S / (4 * threads);
  const Index largest = std::max<Index>(128, 64 * 1024 / (z.heads_per_kv() * z.hd));
  const Index length = round_up(std::min(std::clamp<Index>(even, 128, largest), S), tile_rows);
  const Index ranges = ceil_div(S, length);
#pragma omp parallel for schedule(dynamic)
  for (Index task = 0; task < pairs * ranges; ++task) {
    // The longest rows go first.
    const Index pair = task % pairs, begin = (ranges - 1 - task / pairs) * length;
    forward_task(z, pair / z.K, pair % z.K, {begin, std::min(begin + length, S)}, q, k, v, out, lse.f32());
  }
}

void CpuBackend::do_kv_cache_append(ConstHeads x, ConstView offsets, Heads y) {
  const Index row = x.heads * x.width;
  for_chunks(x.sequences * x.positions, rows_per_chunk(row), [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const Index b = t / x.positions, i = t % x.positions, at = offsets.i32()[b] + i;
      SY_ASSERT(at >= 0 && at < y.positions, "position {} of {}", at, y.positions);
      copy_elements(x.span(), b * x.sequence_stride + i * x.token_stride, row, y.span(),
                    b * y.sequence_stride + at * y.token_stride);
    }
  });
}

void CpuBackend::do_attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                                       ConstHeads v, ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv) {
  const AttentionProblem z(desc, q, k, v);
  const Gradients t{dout, q, k, v, out, lse.f32(), dq, dk, dv};
  const Index pairs = z.B * z.K, threads = omp_get_max_threads();
  const Index rounds = ceil_div(pairs, threads);

  // Either a thread computes all of one kv head with five products per tile. Or, if that would
  // leave threads idle, blocks of keys and blocks of queries are separate tasks, with seven
  // products. Both ways add in the same order.
  if (pairs * 7 >= rounds * threads * 5) {
#pragma omp parallel for schedule(dynamic)
    for (Index pair = 0; pair < pairs; ++pair) {
      Backward backward(z, t, pair / z.K, pair % z.K, {0, z.queries_all});
      for_blocks({0, z.keys_all}, key_block, z.keys_all, [&](Range keys) { backward.keys_task(keys, true); });
      backward.finish_dq();
    }
    return;
  }
  const Index key_blocks = ceil_div(z.keys_all, key_block);
  const Index query_blocks = ceil_div(z.queries_all, query_block);
  const Index blocks = key_blocks + query_blocks;
#pragma omp parallel for schedule(dynamic)
  for (Index task = 0; task < pairs * blocks; ++task) {
    const Index pair = task / blocks, block = task % blocks, b = pair / z.K, kv_head = pair % z.K;
    if (block < key_blocks) {
      Backward(z, t, b, kv_head).keys_task({block * key_block, std::min((block + 1) * key_block, z.keys_all)}, false);
    } else {
      const Index begin = (block - key_blocks) * query_block;
      Backward(z, t, b, kv_head, {begin, std::min(begin + query_block, z.queries_all)}).queries_task();
    }
  }
}

// A head is a task, which processes its sequences in order.
void CpuBackend::do_attention_backward_learned(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                                               ConstHeads v, ConstView out, ConstView lse, View dbias, View dsinks) {
  const AttentionProblem z(desc, q, k, v);
  const Gradients t{dout, q, k, v, out, lse.f32(), {}, {}, {}};
#pragma omp parallel for schedule(dynamic)
  for (Index head = 0; head < z.H; ++head)
    for (Index b = 0; b < z.B; ++b) {
      if (dbias)
        Backward(z, t, b, head / z.heads_per_kv()).bias_task(head, dbias.dim(1), dbias.f32() + head * dbias.dim(1));
      if (!dsinks) continue;
      // The sink's weight is exp(sink - lse), and its value is 0.
      std::vector<float> widened(z.is_bf16 ? 2 * z.vd : 0);
      float sum = 0;
      for (Index i = 0; i < z.queries_all; ++i) {
        const auto dout_rows = floats_of(ConstHeads(dout), b, head, {i, i + 1}, widened.data()),
                   out_rows = floats_of(ConstHeads(out), b, head, {i, i + 1}, widened.data() + z.vd);
        sum += std::exp(desc.sinks.f32()[head] - lse.f32()[z.lse_offset(b, head) + i]) *
               dot(dout_rows.at(i), out_rows.at(i), z.vd);
      }
      dsinks.f32()[head] -= sum;
    }
}

}  // namespace sy::cpu
