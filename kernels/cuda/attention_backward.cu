// Attention backward. With P = exp(score - lse) and D_i = dout_i . out_i:
//   dV = P^T dout,  dS = P (dout V^T - D) * derivative of the cap
//   dQ = scale dS K,  dK = scale dS^T Q
//
// No block adds to the result of another one. In query_gradient, a block holds queries, iterates
// over keys, and sums dQ. In key_gradients, a block holds keys, iterates over queries, and sums dK
// and dV. Both take the same step from tile to tile, in which they compute P and dS again.
//
// Cost of a visible pair of query and key in one head of hd elements:
//   query_gradient  6 hd FLOPs, for three products, and 6 for P and dS
//   key_gradients   8 hd FLOPs, for four products, and 6; if dK and dV are separate, 6 hd for dK
//                   and 4 hd for dV
//
// A cap adds 5 FLOPs. A step reads 2 cols * hd elements, mostly from the L2 cache, for rows * cols
// pairs. With 64 rows of bf16, the minimum, that is 96 FLOPs per byte, so the kernels are bound by
// the products.
#include <algorithm>

#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/ops/attention.h"

namespace sy::cuda {

namespace {

using namespace attention;

// Heads of one launch: all kv heads, or as many as the workspace holds D for, and the query heads
// that read them.
struct HeadRange {
  int first_kv, kv_heads;
  int heads_per_kv;
  __device__ int count() const { return kv_heads * heads_per_kv; }
  __device__ int first() const { return first_kv * heads_per_kv; }
};

// D: [B, heads, Sq] from vectors of `width` elements. A block takes a token, and its warps share
// the token's heads. An element of out costs 2w bytes and 2 FLOPs.
template <class T, int N>
__global__ void deltas(const AttentionProblem z, const HeadRange heads, Index width, In<T> dout, In<T> out,
                       Out<float> delta) {
  const int warps = static_cast<int>(blockDim.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
  const Index token = blockIdx.x, b = token / z.Sq, position = token % z.Sq;
  for (int head = static_cast<int>(threadIdx.x) / warp_size; head < heads.count(); head += warps) {
    const Index first = (token * z.H + heads.first() + head) * width;
    float sum = 0;
    for (Index i = lane * N; i < width; i += warp_size * N) {
      const Pack<T, N> x = load<N>(dout, first + i), y = load<N>(out, first + i);
      for (int e = 0; e < N; ++e) sum += to_float(x[e]) * to_float(y[e]);
    }
    sum = warp_sum(sum);
    if (lane == 0) delta[(b * heads.count() + head) * z.Sq + position] = sum;
  }
}

// Bias of a score, for a query and a key that it sees by position; minus infinity if documents or
// patterns hide the key.
template <class G>
__device__ float special_score(const AttentionProblem& z, const G& mask_operands, const ScoreScaling& scores, int head,
                               int query, int key) {
  if constexpr (std::is_null_pointer_v<G>)
    return 0;
  else
    return z.allows(mask_operands, query, key) ? z.bias(mask_operands, scores, head, query, key) : -INFINITY;
}

// ---- the step that both kernels take ----
//
// A step multiplies the rows that a block holds with the columns of the current tile.
//   x, y: the operands of rows and of columns in Q K^T: queries and keys, or the reverse
//   u, w: their operands in dout V^T

// Tiles of a kernel. gradients: number of gradients that a warp sums in registers. row_tiles:
// number of tiles of rows that a block holds, x and perhaps u. There are two tiles of y, because
// the next one is loaded while the current one is used. There is one tile of w, and the next one is
// loaded during dS y.
template <class T, int width, int gradients, int row_tiles, bool general>
struct Steps {
  static constexpr bool f32 = std::is_same_v<T, float>, wide = width > 128;
  static constexpr int M = !f32 && width * gradients <= (general ? 64 : 128) ? 2 : 1;
  static constexpr int cols = f32 ? (wide ? 16 : 32) : (M == 2 || wide ? 32 : 64);
  static constexpr int N = cols / 8, W = width / 8;
  // If registers hold two gradients of one tile of rows per warp, a block has twice as many warps.
  // It then holds as many rows as with M = 2, so that each loaded tile serves 128 rows. This
  // fills the registers of a multiprocessor. Two smaller blocks could not on an A100, whose shared
  // memory holds only one.
  static constexpr int warps = f32 && wide ? 2 : !f32 && gradients == 2 && M == 1 ? 8 : 4;
  using Of = Tiles<T, width, M, warps, cols, row_tiles, 3>;
  using Left = typename Of::Left;
  static constexpr int rows = Of::rows, threads = Of::threads;

  // Shared memory of a block, followed by lse and D of `queries` queries.
  struct Shared {
    static constexpr int tile_of_rows = rows * pitch<T>(width), tile_of_cols = cols * pitch<T>(width);
    T *x, *u, *y, *w, *scratch;  // scratch: of this warp
    float* query_sums;

    __device__ explicit Shared(int warp)
        : x(reinterpret_cast<T*>(dynamic_shared())),
          u(x + tile_of_rows),
          y(x + row_tiles * tile_of_rows),
          w(y + 2 * tile_of_cols),
          scratch(w + tile_of_cols + warp * Left::shared_size),
          query_sums(reinterpret_cast<float*>(x + Of::shared_elements)) {}
  };
  static constexpr Index shared_bytes(int queries) {
    return Of::shared_elements * sizeof(T) + 2 * queries * sizeof(float);
  }

  // Starts the copy of a tile to shared memory (see load_tile).
  template <class P>
  static __device__ void load_rows(T* tile, const HeadRows<P>& from, int first, bool in_packs) {
    load_tile<rows, width, threads>(tile, from, first, in_packs);
  }
  template <class P>
  static __device__ void load_cols(T* tile, const HeadRows<P>& from, int first, bool in_packs) {
    load_tile<cols, width, threads>(tile, from, first, in_packs);
  }
  // Starts the copy of lse and D of queries [first, first + count) to sums: [2, count]. From query
  // S on, they are 0.
  template <int count>
  static __device__ void load_query_sums(float* sums, In<float> lse, In<float> delta, int first, int S) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
      load_async<1>(sums + i, lse, first + i, first + i < S);
      load_async<1>(sums + count + i, delta, first + i, first + i < S);
    }
  }

  // Computes P in p from the products of queries and keys. Computes dS / scale in ds from the
  // products of dout and values. Element (m, n, i) belongs to query query_of(m, n, i) of lse and
  // delta. If some elements are not visible, sees(m, n, i) is called for each. In general kernels,
  // special(m, n, i) is then called for the visible ones. It returns the bias of the score, or
  // minus infinity if the element is hidden after all.
  template <class QueryOf, class Sees, class Special>
  static __device__ void finish(float (&p)[M][N][4], float (&ds)[M][N][4], const ScoreScaling& scores, const float* lse,
                                const float* delta, bool all_seen, QueryOf query_of, Sees sees, Special special) {
    each<M, N>([&](int m, int n, int i) { ds[m][n][i] -= delta[query_of(m, n, i)]; });
    if (scores.capped)
      each<M, N>([&](int m, int n, int i) {
        p[m][n][i] = cap_tanh<T>(scores.inner * p[m][n][i]);
        ds[m][n][i] *= 1 - p[m][n][i] * p[m][n][i];
      });
    if constexpr (general)
      if (!all_seen) each<M, N>([&](int m, int n, int i) { p[m][n][i] += sees(m, n, i) ? special(m, n, i) : 0; });
    each<M, N>([&](int m, int n, int i) {
      p[m][n][i] = exp2_approx(scores.outer * p[m][n][i] - log2_e * lse[query_of(m, n, i)]);
    });
    if (!all_seen) {
      each<M, N>([&](int m, int n, int i) {
        if (!sees(m, n, i)) p[m][n][i] = 0;
      });
    }
    each<M, N>([&](int m, int n, int i) { ds[m][n][i] *= p[m][n][i]; });
  }

  static __device__ void scale(float (&c)[M][W][4], float factor) {
    each<M, W>([&](int m, int n, int i) { c[m][n][i] *= factor; });
  }
};

// ---- dQ ----

template <class T, int width, bool general>
struct QuerySteps : Steps<T, width, 1, 2, general> {
  static constexpr int queries = QuerySteps::rows;
};

// A block takes a tile of queries of one head and iterates over the keys that some of them see.
template <class T, int width, bool general>
__global__ void __launch_bounds__(QuerySteps<T, width, general>::threads)
    query_gradient(const AttentionProblem z, const ScoreScaling scores, const HeadRange heads, int tiles,
                   const InHeads<T> dout, const InHeads<T> q, const InHeads<T> k, const InHeads<T> v,
                   const GeneralOperands special, In<float> lse, In<float> delta, const OutHeads<T> dq_out) {
  using S = QuerySteps<T, width, general>;
  constexpr int M = S::M, N = S::N, cols = S::cols;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const BlockWork work = block_work(blockIdx.x, gridDim.x, tiles, heads.count());
  const int b = work.b, first = (tiles - 1 - work.tile) * S::rows;
  const int head = heads.first() + work.head, kv_head = heads.first_kv + work.head / heads.heads_per_kv;
  const auto mask_operands = of_sequence<general>(special, b, z);
  const int last = min(first + S::rows, z.Sq) - 1, warp_first = first + warp * 16 * M;
  const Span by_first = z.keys(mask_operands, first), by_last = z.keys(mask_operands, last);
  const Span seen_by_all = {by_last.begin, by_first.end};
  const int end = by_last.end;

  const typename S::Shared tile(warp);
  T* const warp_q = tile.x + warp * 16 * M * pitch<T>(width);
  T* const warp_dout = tile.u + warp * 16 * M * pitch<T>(width);
  S::load_rows(tile.x, q.rows(b, head), first, z.packs);
  S::load_rows(tile.u, dout.rows(b, head), first, z.packs);
  S::template load_query_sums<S::queries>(tile.query_sums, lse + (Index{b} * z.H + head) * z.Sq,
                                          delta + (Index{b} * heads.count() + head - heads.first()) * z.Sq, first,
                                          z.Sq);
  int key = z.skip_masked(mask_operands, by_first.begin / cols * cols, cols, first);
  S::load_cols(tile.y, k.rows(b, kv_head), key, z.packs);
  S::load_cols(tile.w, v.rows(b, kv_head), key, z.packs);

  float dq[M][S::W][4] = {};
  for (int which = 0;; which ^= 1) {
    const int next = z.skip_masked(mask_operands, key + cols, cols, first);
    wait_async();
    __syncthreads();
    if (next < end) S::load_cols(tile.y + (which ^ 1) * S::Shared::tile_of_cols, k.rows(b, kv_head), next, z.packs);
    const T* const keys = tile.y + which * S::Shared::tile_of_cols;
    float p[M][N][4] = {}, ds[M][N][4] = {};
    multiply_transposed<width>(p, warp_q, keys);
    multiply_transposed<width>(ds, warp_dout, tile.w);
    const float* const query_lse = tile.query_sums + warp * 16 * M;
    S::finish(
        p, ds, scores, query_lse, query_lse + S::queries,
        key >= seen_by_all.begin && key + cols <= seen_by_all.end && !z.needs_element_checks(mask_operands),
        [](int m, int, int i) { return row_of(m, i); },
        [&](int m, int n, int i) { return z.sees(mask_operands, warp_first + row_of(m, i), key + column_of(n, i)); },
        [&](int m, int n, int i) {
          return special_score(z, mask_operands, scores, head, warp_first + row_of(m, i), key + column_of(n, i));
        });
    __syncthreads();
    if (next < end) S::load_cols(tile.w, v.rows(b, kv_head), next, z.packs);
    multiply(dq, typename S::Left(ds, tile.scratch), keys);
    if (next >= end) break;
    key = next;
  }
  S::scale(dq, scores.scale);
  store_tile(dq, warp_q, dq_out.rows(b, head), warp_first, z.packs);
}

// ---- dK and dV ----

// The gradients that a kernel computes. Both of wide heads do not fit the registers together.
enum class Wanted { dk_dv, dk, dv };

template <class T, int width, Wanted wanted, bool general>
struct KeySteps : Steps<T, width, wanted == Wanted::dk_dv ? 2 : 1, wanted == Wanted::dv ? 1 : 2, general> {
  static constexpr bool wants_dk = wanted != Wanted::dv, wants_dv = wanted != Wanted::dk;
  // Queries of one tile; shared memory holds lse and D of two.
  static constexpr int queries = KeySteps::cols;
};

// A block takes a tile of keys of one head. It iterates over the queries that see some of them, in
// all heads that read it.
template <class T, int width, Wanted wanted, bool general>
__global__ void __launch_bounds__(KeySteps<T, width, wanted, general>::threads)
    key_gradients(const AttentionProblem z, const ScoreScaling scores, const HeadRange heads, int tiles,
                  const InHeads<T> dout, const InHeads<T> q, const InHeads<T> k, const InHeads<T> v,
                  const GeneralOperands special, In<float> lse, In<float> delta, const OutHeads<T> dk_out,
                  const OutHeads<T> dv_out) {
  using S = KeySteps<T, width, wanted, general>;
  constexpr int M = S::M, N = S::N, cols = S::cols;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const BlockWork work = block_work(blockIdx.x, gridDim.x, tiles, heads.kv_heads);
  const int b = work.b, first = work.tile * S::rows, kv_head = heads.first_kv + work.head;
  const int first_head = kv_head * heads.heads_per_kv, end_head = first_head + heads.heads_per_kv;
  const auto mask_operands = of_sequence<general>(special, b, z);
  const int last = min(first + S::rows, z.Sk) - 1, warp_first = first + warp * 16 * M;
  const Span by_first = z.queries(mask_operands, first), by_last = z.queries(mask_operands, last);
  const Span see_all = {by_last.begin, by_first.end};
  const int begin = by_first.begin / cols * cols;
  const int end =
      general && first >= z.skip_from ? min(by_last.end, last - z.query_offset + z.pattern.local) : by_last.end;

  const typename S::Shared tile(warp);
  T* const warp_k = tile.x + warp * 16 * M * pitch<T>(width);
  T* const warp_v = tile.u + warp * 16 * M * pitch<T>(width);
  const auto load_queries = [&](int which, int head, int from) {
    S::load_cols(tile.y + which * S::Shared::tile_of_cols, q.rows(b, head), from, z.packs);
    S::template load_query_sums<S::queries>(
        tile.query_sums + 2 * which * S::queries, lse + (Index{b} * z.H + head) * z.Sq,
        delta + (Index{b} * heads.count() + head - heads.first()) * z.Sq, from, z.Sq);
  };
  S::load_rows(tile.x, k.rows(b, kv_head), first, z.packs);
  if (S::wants_dk) S::load_rows(tile.u, v.rows(b, kv_head), first, z.packs);
  int head = first_head, query = begin;
  load_queries(0, head, query);
  S::load_cols(tile.w, dout.rows(b, head), query, z.packs);

  float dk[M][S::W][4] = {}, dv[M][S::W][4] = {};
  for (int which = 0;; which ^= 1) {
    const int next_head = query + cols < end ? head : head + 1;
    const int next = next_head == head ? query + cols : begin;
    const bool more = next_head < end_head;
    wait_async();
    __syncthreads();
    if (more) load_queries(which ^ 1, next_head, next);
    const T* const queries = tile.y + which * S::Shared::tile_of_cols;
    float p[M][N][4] = {}, ds[M][N][4] = {};
    multiply_transposed<width>(p, warp_k, queries);
    if (S::wants_dk) multiply_transposed<width>(ds, warp_v, tile.w);
    const float* const query_lse = tile.query_sums + 2 * which * S::queries;
    S::finish(
        p, ds, scores, query_lse, query_lse + S::queries,
        query >= see_all.begin && query + cols <= see_all.end && !z.needs_element_checks(mask_operands),
        [](int, int n, int i) { return column_of(n, i); },
        [&](int m, int n, int i) { return z.sees(mask_operands, query + column_of(n, i), warp_first + row_of(m, i)); },
        [&](int m, int n, int i) {
          return special_score(z, mask_operands, scores, head, query + column_of(n, i), warp_first + row_of(m, i));
        });
    if (S::wants_dv) multiply(dv, typename S::Left(p, tile.scratch), tile.w);
    __syncthreads();
    if (more) S::load_cols(tile.w, dout.rows(b, next_head), next, z.packs);
    if (S::wants_dk) multiply(dk, typename S::Left(ds, tile.scratch), queries);
    if (!more) break;
    head = next_head, query = next;
  }
  if (S::wants_dk) {
    S::scale(dk, scores.scale);
    store_tile(dk, warp_k, dk_out.rows(b, kv_head), warp_first, z.packs);
  }
  if (S::wants_dv) store_tile(dv, warp_k, dv_out.rows(b, kv_head), warp_first, z.packs);
}

// ---- gradients of attention's parameters ----

// The vector of one position in one head.
template <class P>
__device__ P vector_of(const HeadsOf<P>& x, int b, int head, int position) {
  const HeadRows<P> rows = x.rows(b, head);
  return rows.x + position * rows.stride;
}

// dbias: [H, n] += the sums of dS / scale by head and distance. A block takes one distance in one
// head, and its threads share the pairs of that distance. The kernels above could not sum by
// distance in a fixed order, because each block holds terms of many distances. A pair costs 2 hd +
// 3 vd FLOPs, and reads its vectors, from caches at best.
template <class T>
__global__ void bias_gradient(const AttentionProblem z, const ScoreScaling scores, const InHeads<T> dout,
                              const InHeads<T> q, const InHeads<T> k, const InHeads<T> v, const InHeads<T> out,
                              const GeneralOperands special, In<float> lse, Out<float> dbias) {
  const int later = z.sees_later_keys() ? z.Sk - 1 : 0;  // keys that may be after a query
  const int distance = static_cast<int>(blockIdx.x) - later, head = static_cast<int>(blockIdx.y);
  const int kv_head = head / z.heads_per_kv();
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < z.B * z.Sq; i += static_cast<int>(blockDim.x)) {
    const int b = i / z.Sq, query = i % z.Sq, key = z.query_offset + query - distance;
    const GeneralOperands mask_operands = special.of(b, z);
    if (key < 0 || !z.sees(mask_operands, query, key) || !z.allows(mask_operands, query, key)) continue;
    const auto query_vector = vector_of(q, b, head, query), key_vector = vector_of(k, b, kv_head, key);
    // slope: derivative of the loss with respect to the score, divided by its weight.
    float product = 0, slope = 0;
    for (Index c = 0; c < q.width; ++c) product += to_float(query_vector[c]) * to_float(key_vector[c]);
    const auto d = vector_of(dout, b, head, query), value = vector_of(v, b, kv_head, key),
               mean = vector_of(out, b, head, query);
    for (Index c = 0; c < v.width; ++c) slope += to_float(d[c]) * (to_float(value[c]) - to_float(mean[c]));
    const float score = scores.outer * (product + z.bias(mask_operands, scores, head, query, key));
    sum += slope * exp2_approx(score - log2_e * lse[(Index{b} * z.H + head) * z.Sq + query]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) dbias[Index{head} * z.biases + z.bias_origin - distance] += sum;
}

// dsinks: [H] += the sums of -exp(sink - lse) D. A block takes a head. An element of out costs 2w
// bytes and 2 FLOPs.
template <class T>
__global__ void sink_gradient(const AttentionProblem z, const InHeads<T> dout, const InHeads<T> out,
                              const GeneralOperands special, In<float> lse, Out<float> dsinks) {
  const int head = static_cast<int>(blockIdx.x);
  const float sink = special.sinks[head];
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < z.B * z.Sq; i += static_cast<int>(blockDim.x)) {
    const int b = i / z.Sq, query = i % z.Sq;
    const auto x = vector_of(dout, b, head, query), y = vector_of(out, b, head, query);
    float delta = 0;
    for (Index c = 0; c < out.width; ++c) delta += to_float(x[c]) * to_float(y[c]);
    sum += delta * exp2_approx(log2_e * (sink - lse[(Index{b} * z.H + head) * z.Sq + query]));
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) dsinks[head] -= sum;
}

// ---- launches ----

struct Operands {
  ConstView dout;
  ConstHeads q, k, v;
  ConstView out, lse;
  Heads dq, dk, dv;

  Operands slice_sequences(Index begin, Index count) const {
    return {dout.rows(begin, count),          q.slice_sequences(begin, count),  k.slice_sequences(begin, count),
            v.slice_sequences(begin, count),  out.rows(begin, count),           lse.rows(begin, count),
            dq.slice_sequences(begin, count), dk.slice_sequences(begin, count), dv.slice_sequences(begin, count)};
  }
};

template <class T, int width, bool general>
void launch_query_gradient(Context& context, const AttentionProblem& z, const ScoreScaling& scores,
                           const HeadRange& heads, const GeneralOperands& special, const Operands& o, ConstView delta) {
  using S = QuerySteps<T, width, general>;
  constexpr Index shared_bytes = S::shared_bytes(S::queries);
  static_assert(shared_bytes <= attention_shared_bytes(width));
  const Index tiles = blocks_of(z.Sq, S::rows);
  launch(context,
         {.x = tiles * z.B * heads.kv_heads * heads.heads_per_kv, .threads = S::threads, .shared_bytes = shared_bytes},
         query_gradient<T, width, general>, z, scores, heads, static_cast<int>(tiles), in_heads<T>(o.dout),
         in_heads<T>(o.q), in_heads<T>(o.k), in_heads<T>(o.v), special, in<float>(o.lse), in<float>(delta),
         out_heads<T>(o.dq));
}

template <class T, int width, Wanted wanted, bool general>
void launch_key_gradients(Context& context, const AttentionProblem& z, const ScoreScaling& scores,
                          const HeadRange& heads, const GeneralOperands& special, const Operands& o, ConstView delta) {
  using S = KeySteps<T, width, wanted, general>;
  constexpr Index shared_bytes = S::shared_bytes(2 * S::queries);
  static_assert(shared_bytes <= attention_shared_bytes(width));
  const Index tiles = blocks_of(z.Sk, S::rows);
  launch(context, {.x = tiles * z.B * heads.kv_heads, .threads = S::threads, .shared_bytes = shared_bytes},
         key_gradients<T, width, wanted, general>, z, scores, heads, static_cast<int>(tiles), in_heads<T>(o.dout),
         in_heads<T>(o.q), in_heads<T>(o.k), in_heads<T>(o.v), special, in<float>(o.lse), in<float>(delta),
         out_heads<T>(o.dk), out_heads<T>(o.dv));
}

// Gradients of all heads of the operands, or of `heads` alone. delta: [B, heads, Sq] is memory for
// D.
void launch_backward(Context& context, const AttentionDesc& desc, const HeadRange& heads, const Operands& o,
                     View delta) {
  with_type(o.q.dtype, [&]<class T>(T) {
    const ScoreScaling scores(desc);
    AttentionProblem z(desc, o.q, o.k);
    z.packs = true;
    for (ConstHeads x :
         {ConstHeads(o.dout), o.q, o.k, o.v, ConstHeads(o.out), ConstHeads(o.dq), ConstHeads(o.dk), ConstHeads(o.dv)})
      z.packs &= in_packs<T>(x);
    launch(context, Grid{.x = Index{z.B} * z.Sq}, z.packs ? deltas<T, 4> : deltas<T, 1>, z, heads, o.v.width,
           in<T>(o.dout), in<T>(o.out), cuda::out<float>(delta));
    with_width(std::max(o.q.width, o.v.width), [&](auto width) {
      const auto run = [&](auto general) {
        launch_query_gradient<T, width, general>(context, z, scores, heads, GeneralOperands(desc), o, delta);
        if constexpr (width <= 128) {
          launch_key_gradients<T, width, Wanted::dk_dv, general>(context, z, scores, heads, GeneralOperands(desc), o,
                                                                 delta);
        } else {
          launch_key_gradients<T, width, Wanted::dk, general>(context, z, scores, heads, GeneralOperands(desc), o,
                                                              delta);
          launch_key_gradients<T, width, Wanted::dv, general>(context, z, scores, heads, GeneralOperands(desc), o,
                                                              delta);
        }
      };
      GeneralOperands::is_needed(desc) ? run(std::true_type{}) : run(std::false_type{});
    });
  });
}

}  // namespace

void execute(CudaDevice& device, const ops::AttentionBackward& op) {
  Context& context = device.context();
  if (context.fused_attention && is_fused(op.q, op.k, op.v, op.desc) && context.fused_attention->run(op)) return;
  const AttentionProblem all(op.desc, op.q, op.k);
  const Operands operands{op.dout, op.q, op.k, op.v, op.out, op.lse, op.dq, op.dk, op.dv};
  // Processes as many sequences, or kv heads of one sequence, at once as the workspace holds D for.
  const int heads_per_kv = all.H / all.K;
  const Index fit = context.workspace_bytes / (Index{heads_per_kv} * std::max(all.Sq, 1) * size_of(DType::f32));
  const int step_b = static_cast<int>(std::clamp<Index>(fit / all.K, 1, all.B));
  const int step_kv = static_cast<int>(std::clamp<Index>(fit, 1, all.K));
  for (int b = 0; b < all.B; b += step_b)
    for (int kv = 0; kv < all.K; kv += step_kv) {
      const int sequences = std::min(step_b, all.B - b);
      const HeadRange heads{kv, std::min(step_kv, all.K - kv), heads_per_kv};
      const View delta = Workspace(context).take({sequences, heads.kv_heads * heads_per_kv, all.Sq}, DType::f32);
      AttentionDesc slice = op.desc;
      if (op.desc.mask.document_start) slice.mask.document_start = op.desc.mask.document_start.rows(b, sequences);
      if (op.desc.mask.prefix_end) slice.mask.prefix_end = op.desc.mask.prefix_end.rows(b, sequences);
      if (op.desc.mask.selected) slice.mask.selected = op.desc.mask.selected.rows(b, sequences);
      if (op.desc.mask.key_lengths) slice.mask.key_lengths = op.desc.mask.key_lengths.rows(b, sequences);
      launch_backward(context, slice, heads, operands.slice_sequences(b, sequences), delta);
    }
}

void execute(CudaDevice& device, const ops::AttentionBackwardLearned& op) {
  with_type(op.q.dtype, [&]<class T>(T) {
    const AttentionProblem z(op.desc, op.q, op.k);
    const GeneralOperands special(op.desc);
    const auto dout = in_heads<T>(op.dout), out = in_heads<T>(op.out);
    const auto lse = in<float>(op.lse);
    if (op.dbias)
      launch(device.context(),
             {.x = Index{z.query_offset} + z.Sq + (z.sees_later_keys() ? z.Sk - 1 : 0), .y = z.H, .threads = 128},
             bias_gradient<T>, z, ScoreScaling(op.desc), dout, in_heads<T>(op.q), in_heads<T>(op.k), in_heads<T>(op.v),
             out, special, lse, cuda::out<float>(op.dbias));
    if (op.dsinks)
      launch(device.context(), {.x = z.H}, sink_gradient<T>, z, dout, out, special, lse, cuda::out<float>(op.dsinks));
  });
}

}  // namespace sy::cuda
