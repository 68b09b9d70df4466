#include "kernels/cpu/attention.h"

#include <algorithm>
#include <limits>

#include <omp.h>

#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

namespace sy::cpu {
namespace {

constexpr Index round_up(Index n, Index multiple) { return (n + multiple - 1) / multiple * multiple; }

// Keys and queries are taken in blocks that begin at multiples of these from the start of the sequence, so that the
// order of every sum is a matter of positions alone. The scores of a strip of tile_rows queries fit the L1 cache; those
// of a block of queries, the L2 cache.
constexpr Index key_block = 256;
constexpr Index query_block = round_up(96, tile_rows);

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// Positions [begin, end).
struct Range {
  Index begin, end;
  Index size() const { return end - begin; }
};

// The sizes of a call: where each head's matrix [S, hd] lies, and which keys a query sees.
struct Sizes {
  AttentionDesc desc;
  Index B, S, H, K, hd;

  Index group() const { return H / K; }
  Index token_stride() const { return (H + 2 * K) * hd; }  // of qkv
  Index q_offset(Index b, Index head) const { return b * S * token_stride() + head * hd; }
  Index k_offset(Index b, Index kv_head) const { return q_offset(b, H + kv_head); }
  Index v_offset(Index b, Index kv_head) const { return q_offset(b, H + K + kv_head); }
  Index out_stride() const { return H * hd; }
  Index out_offset(Index b, Index head) const { return b * S * out_stride() + head * hd; }
  Index lse_offset(Index b, Index head) const { return (b * H + head) * S; }

  // The keys that query i sees.
  Range keys(Index i) const {
    return {desc.window > 0 ? std::max<Index>(0, i - desc.window + 1) : 0, desc.causal ? i + 1 : S};
  }
  // The keys that some query of the range sees.
  Range keys(Range queries) const { return {keys(queries.begin).begin, keys(queries.end - 1).end}; }
  // The queries that see some key of the range.
  Range queries(Range keys) const {
    return {desc.causal ? keys.begin : 0, desc.window > 0 ? std::min(S, keys.end - 1 + desc.window) : S};
  }
};

// body(range) for every block that overlaps `positions`, in order; a range is cut at `end` but begins at its block.
template <class Body>
void for_blocks(Range positions, Index block, Index end, const Body& body) {
  for (Index begin = positions.begin / block * block; begin < positions.end; begin += block)
    body(Range{begin, std::min(begin + block, end)});
}

using Lanes = detail::Bits<Vector>::Type;

template <int... lane>
constexpr Lanes number_lanes(std::integer_sequence<int, lane...>) {
  return Lanes{lane...};
}
constexpr Lanes lane_numbers = number_lanes(std::make_integer_sequence<int, lanes>{});

// Lane i becomes lane i + distance, going round: with the distances lanes/2, ..., 2, 1, all lanes meet.
Vector rotated(Vector v, int distance) { return __builtin_shuffle(v, (lane_numbers + distance) & (lanes - 1)); }

Vector max(Vector x, Vector y) { return x > y ? x : y; }
float max(Vector v) {
#pragma GCC unroll 4
  for (int distance = lanes / 2; distance > 0; distance /= 2) v = max(v, rotated(v, distance));
  return v[0];
}
float sum(Vector v) {
#pragma GCC unroll 4
  for (int distance = lanes / 2; distance > 0; distance /= 2) v += rotated(v, distance);
  return v[0];
}

// row[j] for the key first + j becomes its score, scaled and capped; minus infinity where `visible` excludes it.
// j < cols, a multiple of lanes. Returns the largest score.
float finish_scores(const AttentionDesc& desc, Range visible, Index first, Index cols, float* row) {
  Vector largest = Vector{} + minus_infinity;
  const Vector cap = Vector{} + desc.softcap;
  // Of the columns that stay.
  const auto begin = static_cast<std::int32_t>(std::max<Index>(visible.begin - first, 0));
  const auto end = static_cast<std::int32_t>(std::clamp<Index>(visible.end - first, 0, cols));
  for (Index j = 0; j < cols; j += lanes) {
    Vector s = load(row + j) * desc.scale;
    if (desc.softcap > 0) s = cap * tanh_(s / cap);
    if (j < begin || j + lanes > end) {
      const Lanes column = lane_numbers + static_cast<std::int32_t>(j);
      s = (column >= begin) & (column < end) ? s : Vector{} + minus_infinity;
    }
    store(row + j, s);
    largest = max(largest, s);
  }
  return max(largest);
}

// out[r, 0..cols) (+)= left rows (row-major, `stride` apart) times the packed panels of `right`.
template <Index a_row, Index a_col>
void multiply(Index rows, Index k, const float* left, const float* panels, Index depth, Index cols, float* out,
              Index out_stride, bool accumulate) {
  for (Index j = 0; j < cols; j += tile_cols) {
    Tiles<a_row, a_col>::run(rows, k, left, panels + j * depth, tile_cols, out + j, out_stride,
                             std::min<Index>(tile_cols, cols - j), accumulate);
  }
}

// ---- forward ----

// The queries [queries) of every head that reads one kv head. out holds the unnormalised sums meanwhile.
void forward_task(const Sizes& z, Index b, Index kv_head, Range queries, const float* qkv, float* out, float* lse) {
  thread_local Buffer buffer;
  const Index hd = z.hd, group = z.group(), stride = z.token_stride();
  const Index rows = round_up(queries.size(), tile_rows);
  const Index panel_cols = round_up(hd, tile_cols);
  float* q_panels = buffer.reserve(group * (rows * hd + 2 * rows + lanes) + key_block * (hd + panel_cols + tile_rows) +
                                   4 * lanes);
  float* largest = q_panels + group * rows * hd + lanes;  // [group, rows]: of the scores so far
  float* total = largest + group * rows;                  // [group, rows]: sum of exp(score - largest)
  float* k_panels = total + group * rows;
  float* v_panels = k_panels + key_block * hd + lanes;
  float* scores = v_panels + key_block * panel_cols + lanes;  // [tile_rows, key_block]

  for (Index h = 0; h < group; ++h) {
    pack<tile_rows>(qkv + z.q_offset(b, kv_head * group + h) + queries.begin * stride, stride, 1, queries.size(), hd,
                    q_panels + h * rows * hd);
  }
  const Range all_keys = z.keys(queries);
  for_blocks(all_keys, key_block, z.S, [&](Range keys) {
    pack<tile_cols>(qkv + z.k_offset(b, kv_head) + keys.begin * stride, stride, 1, keys.size(), hd, k_panels);
    pack<tile_cols>(qkv + z.v_offset(b, kv_head) + keys.begin * stride, 1, stride, hd, keys.size(), v_panels);
    for (Index h = 0; h < group; ++h) {
      const Index head = kv_head * group + h;
      for (Index i = queries.begin; i < queries.end; i += tile_rows) {
        const Range strip{i, std::min(i + tile_rows, queries.end)};
        const Range strip_keys = z.keys(strip);
        const Index used = std::min(strip_keys.end, keys.end) - keys.begin;  // keys of the block, from its start
        if (used <= 0 || strip_keys.begin >= keys.end) continue;
        const bool is_first = keys.begin <= strip_keys.begin;
        multiply<1, tile_rows>(strip.size(), hd, q_panels + h * rows * hd + (i - queries.begin) * hd, k_panels, hd, used,
                               scores, key_block, false);
        float* strip_out = out + z.out_offset(b, head) + i * z.out_stride();
        for (Index r = 0; r < strip.size(); ++r) {
          float* row = scores + r * key_block;
          const Index cols = round_up(used, lanes);
          const Index state = h * rows + i - queries.begin + r;
          const float before = is_first ? minus_infinity : largest[state];
          const float now = std::max(before, finish_scores(z.desc, z.keys(i + r), keys.begin, cols, row));
          const float shift = now == minus_infinity ? 0.0f : now;  // no key of the row seen yet
          Vector row_sum{};
          for (Index j = 0; j < cols; j += lanes) {
            const Vector p = exp_(load(row + j) - shift);
            store(row + j, p);
            row_sum += p;
          }
          const float shrink = exp_(before - shift);
          if (!is_first && shrink != 1.0f)
            for (Index c = 0; c < hd; ++c) strip_out[r * z.out_stride() + c] *= shrink;
          total[state] = (is_first ? 0.0f : total[state] * shrink) + sum(row_sum);
          largest[state] = now;
        }
        multiply<key_block, 1>(strip.size(), used, scores, v_panels, keys.size(), hd, strip_out, z.out_stride(),
                               !is_first);
      }
    }
  });
  for (Index h = 0; h < group; ++h) {
    const Index head = kv_head * group + h;
    for (Index i = queries.begin; i < queries.end; ++i) {
      const Index state = h * rows + i - queries.begin;
      const float factor = 1.0f / total[state];
      float* row = out + z.out_offset(b, head) + i * z.out_stride();
      for (Index c = 0; c < hd; ++c) row[c] *= factor;
      lse[z.lse_offset(b, head) + i] = largest[state] + std::log(total[state]);
    }
  }
}

// ---- backward ----
//
// With P = exp(score - lse) and D_i = dout_i . out_i:  dV = P^T dout,  dP = dout V^T,  dS = P (dP - D) times the
// derivative of the cap and the scale,  dQ = dS K,  dK = dS^T Q.

// One kv head's block of keys, packed for each of its uses.
struct PackedKeys {
  Range keys;
  float *k_columns, *v_columns;  // [keys] panels of depth hd: the right side of Q K^T and dout V^T
  float* k_rows;                 // [hd] panels of depth keys: the right side of dS K
};

struct Workspace {
  PackedKeys packed;
  float *q_left, *dout_left;    // panels of query rows: the left side of Q K^T and dout V^T
  float *q_right, *dout_right;  // panels of hd columns: the right side of dS^T Q and P^T dout
  float *p, *ds;                // [query_block, key_block]
  float* delta;                 // [query_block]: D

  explicit Workspace(Index hd) {
    thread_local Buffer buffer;
    const Index panel_cols = round_up(hd, tile_cols);
    const std::pair<float**, Index> parts[] = {{&packed.k_columns, key_block * hd},
                                               {&packed.v_columns, key_block * hd},
                                               {&packed.k_rows, key_block * panel_cols},
                                               {&q_left, query_block * hd},
                                               {&dout_left, query_block * hd},
                                               {&q_right, query_block * panel_cols},
                                               {&dout_right, query_block * panel_cols},
                                               {&p, query_block * key_block},
                                               {&ds, query_block * key_block},
                                               {&delta, query_block}};
    Index floats = 0;
    for (const auto& [pointer, size] : parts) floats += round_up(size + lanes, 16);
    float* next = buffer.reserve(floats);
    for (const auto& [pointer, size] : parts) {
      *pointer = next;
      next += round_up(size + lanes, 16);
    }
  }
};

// The tensors of attention_backward.
struct Gradients {
  const float *dout, *qkv, *out, *lse;
  float* dqkv;
};

void pack_keys(const Sizes& z, const Gradients& t, Index b, Index kv_head, Range keys, PackedKeys& packed) {
  const float* k = t.qkv + z.k_offset(b, kv_head) + keys.begin * z.token_stride();
  const float* v = t.qkv + z.v_offset(b, kv_head) + keys.begin * z.token_stride();
  packed.keys = keys;
  pack<tile_cols>(k, z.token_stride(), 1, keys.size(), z.hd, packed.k_columns);
  pack<tile_cols>(v, z.token_stride(), 1, keys.size(), z.hd, packed.v_columns);
  pack<tile_cols>(k, 1, z.token_stride(), z.hd, keys.size(), packed.k_rows);
}

// What one block of queries of one head and one block of keys give each other. The blocks are visited in an order
// that, for each row of dqkv, depends on its position alone: a sum begins at the first block that sees it.
void backward_tile(const Sizes& z, const Gradients& t, Index b, Index head, Range queries, bool want_dq, bool want_dkv,
                   Workspace& w) {
  const Index hd = z.hd, stride = z.token_stride();
  const Range keys = w.packed.keys;
  const float* q = t.qkv + z.q_offset(b, head) + queries.begin * stride;
  const float* dout = t.dout + z.out_offset(b, head) + queries.begin * z.out_stride();
  const float* out = t.out + z.out_offset(b, head) + queries.begin * z.out_stride();
  const float* lse = t.lse + z.lse_offset(b, head) + queries.begin;
  pack<tile_rows>(q, stride, 1, queries.size(), hd, w.q_left);
  pack<tile_rows>(dout, z.out_stride(), 1, queries.size(), hd, w.dout_left);
  for (Index i = 0; i < queries.size(); ++i) {
    Vector products{};
    float rest = 0;
    Index c = 0;
    for (; c + lanes <= hd; c += lanes) products += load(dout + i * z.out_stride() + c) * load(out + i * z.out_stride() + c);
    for (; c < hd; ++c) rest += dout[i * z.out_stride() + c] * out[i * z.out_stride() + c];
    w.delta[i] = sum(products) + rest;
  }

  for (Index i = 0; i < queries.size(); i += tile_rows) {
    const Range strip{queries.begin + i, std::min(queries.begin + i + tile_rows, queries.end)};
    const Range strip_keys = z.keys(strip);
    const Index used = strip_keys.begin < keys.end ? std::clamp<Index>(strip_keys.end - keys.begin, 0, keys.size()) : 0;
    float* p = w.p + i * key_block;
    float* ds = w.ds + i * key_block;
    if (used > 0) {
      multiply<1, tile_rows>(strip.size(), hd, w.q_left + i * hd, w.packed.k_columns, hd, used, p, key_block, false);
      multiply<1, tile_rows>(strip.size(), hd, w.dout_left + i * hd, w.packed.v_columns, hd, used, ds, key_block, false);
    }
    const Index cols = round_up(used, lanes);
    for (Index r = 0; r < strip.size(); ++r, p += key_block, ds += key_block) {
      finish_scores(z.desc, z.keys(strip.begin + r), keys.begin, cols, p);
      const float row_lse = lse[i + r], delta = w.delta[i + r], cap = z.desc.softcap;
      for (Index j = 0; j < cols; j += lanes) {
        const Vector score = load(p + j);
        const Vector probability = exp_(score - row_lse);
        Vector gradient = probability * (load(ds + j) - delta) * z.desc.scale;
        if (cap > 0) {
          // The cap's derivative 1 - tanh^2; a masked score is infinite, its gradient 0.
          const Vector tanh = at_least(score, -cap) / cap;
          gradient *= 1.0f - tanh * tanh;
        }
        store(p + j, probability);
        store(ds + j, gradient);
      }
      std::fill(p + cols, p + key_block, 0.0f);
      std::fill(ds + cols, ds + key_block, 0.0f);
    }
    if (want_dq && used > 0) {
      const bool begun = strip_keys.begin / key_block * key_block < keys.begin;
      multiply<key_block, 1>(strip.size(), used, w.ds + i * key_block, w.packed.k_rows, keys.size(), hd,
                             t.dqkv + z.q_offset(b, head) + strip.begin * stride, stride, begun);
    }
  }
  if (!want_dkv) return;

  pack<tile_cols>(q, 1, stride, hd, queries.size(), w.q_right);
  pack<tile_cols>(dout, 1, z.out_stride(), hd, queries.size(), w.dout_right);
  const Index kv_head = head / z.group();
  for (Index j = 0; j < keys.size(); j += tile_rows) {
    const Range strip{keys.begin + j, std::min(keys.begin + j + tile_rows, keys.end)};
    const Range strip_queries = z.queries(strip);
    const Index skipped = std::clamp<Index>(strip_queries.begin - queries.begin, 0, queries.size());
    const bool begun = head % z.group() > 0 || strip_queries.begin / query_block * query_block < queries.begin;
    const auto accumulate = [&](const float* left, const float* right, Index offset) {
      float* to = t.dqkv + offset + strip.begin * stride;
      multiply<1, key_block>(strip.size(), queries.size() - skipped, left + skipped * key_block + j,
                             right + skipped * tile_cols, queries.size(), hd, to, stride, begun);
    };
    if (skipped == queries.size()) continue;
    accumulate(w.ds, w.q_right, z.k_offset(b, kv_head));
    accumulate(w.p, w.dout_right, z.v_offset(b, kv_head));
  }
}

}  // namespace

void attention_forward(const AttentionDesc& desc, Index B, Index S, Index H, Index K, Index hd, const float* qkv,
                       float* out, float* lse) {
  if (B * S * H * hd == 0) return;
  const Sizes z{desc, B, S, H, K, hd};
  // Runs of queries: packing the keys is shared by a run, whose queries should stay in the L2 cache.
  const Index threads = omp_get_max_threads();
  const Index even = B * K * S / (4 * threads);
  const Index largest = std::max<Index>(128, 64 * 1024 / (z.group() * hd));
  const Index run = round_up(std::min(std::clamp<Index>(even, 128, largest), S), tile_rows);
  const Index runs = (S + run - 1) / run;
#pragma omp parallel for schedule(dynamic)
  for (Index task = 0; task < B * K * runs; ++task) {
    const Index pair = task % (B * K), begin = (runs - 1 - task / (B * K)) * run;  // the longest rows first
    forward_task(z, pair / K, pair % K, {begin, std::min(begin + run, S)}, qkv, out, lse);
  }
}

void attention_backward(const AttentionDesc& desc, Index B, Index S, Index H, Index K, Index hd, const float* dout,
                        const float* qkv, const float* out, const float* lse, float* dqkv) {
  if (B * S * hd == 0) return;
  const Sizes z{desc, B, S, H, K, hd};
  const Gradients t{dout, qkv, out, lse, dqkv};
  const Range everything{0, S};
  const Index pairs = B * K, threads = omp_get_max_threads();
  const Index rounds = (pairs + threads - 1) / threads;

  // Either a thread does all of one kv head with five products a tile, or, where that leaves threads idle, blocks of
  // queries and blocks of keys are tasks of their own, with seven. Both add in the same order.
  if (pairs * 7 >= rounds * threads * 5) {
#pragma omp parallel for schedule(dynamic)
    for (Index pair = 0; pair < pairs; ++pair) {
      const Index b = pair / K, kv_head = pair % K;
      Workspace w(hd);
      for_blocks(everything, key_block, S, [&](Range keys) {
        pack_keys(z, t, b, kv_head, keys, w.packed);
        for (Index head = kv_head * z.group(); head < (kv_head + 1) * z.group(); ++head)
          for_blocks(z.queries(keys), query_block, S,
                     [&](Range queries) { backward_tile(z, t, b, head, queries, true, true, w); });
      });
    }
    return;
  }
  const Index key_blocks = (S + key_block - 1) / key_block, query_blocks = (S + query_block - 1) / query_block;
#pragma omp parallel
  {
#pragma omp for schedule(dynamic) nowait
    for (Index task = 0; task < pairs * key_blocks; ++task) {
      const Index b = task / key_blocks / K, kv_head = task / key_blocks % K, begin = task % key_blocks * key_block;
      const Range keys{begin, std::min(begin + key_block, S)};
      Workspace w(hd);
      pack_keys(z, t, b, kv_head, keys, w.packed);
      for (Index head = kv_head * z.group(); head < (kv_head + 1) * z.group(); ++head)
        for_blocks(z.queries(keys), query_block, S,
                   [&](Range queries) { backward_tile(z, t, b, head, queries, false, true, w); });
    }
#pragma omp for schedule(dynamic)
    for (Index task = 0; task < pairs * query_blocks; ++task) {
      const Index b = task / query_blocks / K, kv_head = task / query_blocks % K;
      const Index begin = task % query_blocks * query_block;
      const Range queries{begin, std::min(begin + query_block, S)};
      Workspace w(hd);
      for_blocks(z.keys(queries), key_block, S, [&](Range keys) {
        pack_keys(z, t, b, kv_head, keys, w.packed);
        for (Index head = kv_head * z.group(); head < (kv_head + 1) * z.group(); ++head)
          backward_tile(z, t, b, head, queries, true, false, w);
      });
    }
  }
}

}  // namespace sy::cpu
