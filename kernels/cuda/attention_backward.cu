// Attention backward. With P = exp(score - lse) and D_i = dout_i . out_i:
//   dV = P^T dout,  dS = P (dout V^T - D) * derivative of the cap
//   dQ = scale dS K,  dK = scale dS^T Q
//
// No block adds to the result of another one. In query_gradient, a block holds queries, iterates
// over keys, and sums dQ. In key_gradients, a block holds keys, iterates over queries, and sums dK
// and dV. Both take the same step from tile to tile, in which they compute P and dS again. If there
// are few kv heads, several blocks share the query heads that read one, and sum_splits adds their
// sums.
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
#include "kernels/cuda/rows.h"
#include "kernels/ops/attention.h"

namespace sy::cuda {

namespace {

using namespace attention;

// Heads of one launch: all kv heads, or as many as the workspace has memory for, and the query
// heads that read them. In key_gradients, `splits` blocks share the query heads of a kv head.
struct HeadRange {
  int first_kv, kv_heads;
  int heads_per_kv, splits;
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
__global__ void __launch_bounds__(QuerySteps<T, width, general>::threads, 1)
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

// Stores a warp's sums as vectors [first, first + 16 M), up to the last vector.
template <int M, int N, class P>
__device__ void store_sums(const float (&c)[M][N][4], const HeadRows<P>& to, int first) {
  each<M, N>([&](int m, int n, int i) {
    const int row = first + row_of(m, i), column = column_of(n, i);
    if (row < to.count && column < to.width) to.x[row * to.stride + column] = c[m][n][i];
  });
}

// A block takes a tile of keys of one head. It iterates over the queries that see some of them, in
// all heads that read it, or in its split of these heads. If there are several splits, their sums
// go to dk_sums and dv_sums: [splits * B, Sk, kv_heads, hd].
template <class T, int width, Wanted wanted, bool general>
__global__ void __launch_bounds__(KeySteps<T, width, wanted, general>::threads, 1)
    key_gradients(const AttentionProblem z, const ScoreScaling scores, const HeadRange heads, int tiles,
                  const InHeads<T> dout, const InHeads<T> q, const InHeads<T> k, const InHeads<T> v,
                  const GeneralOperands special, In<float> lse, In<float> delta, const OutHeads<T> dk_out,
                  const OutHeads<T> dv_out, const OutHeads<float> dk_sums, const OutHeads<float> dv_sums) {
  using S = KeySteps<T, width, wanted, general>;
  constexpr int M = S::M, N = S::N, cols = S::cols;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const BlockWork work = block_work(blockIdx.x, gridDim.x, tiles, heads.kv_heads * heads.splits);
  const int b = work.b, first = work.tile * S::rows;
  const int split = work.head / heads.kv_heads, kv_head = heads.first_kv + work.head % heads.kv_heads;
  const int heads_before = kv_head * heads.heads_per_kv;
  const int first_head = heads_before + first_of_split(split, heads.splits, heads.heads_per_kv);
  const int end_head = heads_before + first_of_split(split + 1, heads.splits, heads.heads_per_kv);
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
  if (S::wants_dk) S::scale(dk, scores.scale);
  if (heads.splits > 1) {
    // Not `split`, for which the loop has no register.
    const int of_head = split_of(head - kv_head * heads.heads_per_kv, heads.splits, heads.heads_per_kv);
    const int b_of_sums = of_head * z.B + b, kv_in_range = kv_head - heads.first_kv;
    if (S::wants_dk) store_sums(dk, dk_sums.rows(b_of_sums, kv_in_range), warp_first);
    if (S::wants_dv) store_sums(dv, dv_sums.rows(b_of_sums, kv_in_range), warp_first);
    return;
  }
  if (S::wants_dk) store_tile(dk, warp_k, dk_out.rows(b, kv_head), warp_first, z.packs);
  if (S::wants_dv) store_tile(dv, warp_k, dv_out.rows(b, kv_head), warp_first, z.packs);
}

// Stores the sums over all splits of x: [splits * B, S, kv_heads, w] in y: [B, S, K, w], from head
// first_kv on. A block takes a position. An element of y costs 4 bytes and 1 FLOP per split, and
// its own bytes.
template <class T>
__global__ void sum_splits(const HeadRange heads, int B, const InHeads<float> x, const OutHeads<T> y) {
  const int b = static_cast<int>(blockIdx.x / x.positions), position = static_cast<int>(blockIdx.x % x.positions);
  for (Index i = threadIdx.x; i < heads.kv_heads * x.width; i += blockDim.x) {
    float sum = 0;
    for (int split = 0; split < heads.splits; ++split)
      sum += x.x[(Index{split} * B + b) * x.sequence_stride + position * x.token_stride + i];
    const HeadRows<decltype(y.x)> to = y.rows(b, heads.first_kv + static_cast<int>(i / x.width));
    to.x[position * to.stride + i % x.width] = from_float<T>(sum);
  }
}

// ---- launches ----

// The operation on sequences [begin, begin + count).
ops::AttentionBackward slice_sequences(const ops::AttentionBackward& op, Index begin, Index count) {
  ops::AttentionBackward slice = op;
  AttentionMask& mask = slice.desc.mask;
  for (ConstView* x :
       {&slice.dout, &slice.out, &slice.lse, &mask.document_start, &mask.prefix_end, &mask.selected, &mask.key_lengths})
    if (*x) *x = x->rows(begin, count);
  for (ConstHeads* x : {&slice.q, &slice.k, &slice.v}) *x = x->slice_sequences(begin, count);
  for (Heads* x : {&slice.dq, &slice.dk, &slice.dv}) *x = x->slice_sequences(begin, count);
  return slice;
}

// The launches for some heads. delta: [B, heads, Sq] is memory for D. The memory for the sums of
// splits is empty if there is one split.
struct Launch {
  const ops::AttentionBackward& op;
  AttentionProblem z;
  HeadRange heads;
  View delta;
  Heads dk_sums = {}, dv_sums = {};
};

template <class T, int width, bool general>
void launch_query_gradient(Context& context, const Launch& call) {
  using S = QuerySteps<T, width, general>;
  constexpr Index shared_bytes = S::shared_bytes(S::queries);
  static_assert(shared_bytes <= attention_shared_bytes(width));
  const auto& [op, z, heads, delta, dk_sums, dv_sums] = call;
  const Index tiles = blocks_of(z.Sq, S::rows);
  launch(context,
         {.x = tiles * z.B * heads.kv_heads * heads.heads_per_kv, .threads = S::threads, .shared_bytes = shared_bytes},
         query_gradient<T, width, general>, z, ScoreScaling(op.desc), heads, static_cast<int>(tiles),
         ConstHeads(op.dout), op.q, op.k, op.v, GeneralOperands(op.desc), op.lse, delta, op.dq);
}

template <class T, int width, Wanted wanted, bool general>
void launch_key_gradients(Context& context, const Launch& call) {
  using S = KeySteps<T, width, wanted, general>;
  constexpr Index shared_bytes = S::shared_bytes(2 * S::queries);
  static_assert(shared_bytes <= attention_shared_bytes(width));
  const auto& [op, z, heads, delta, dk_sums, dv_sums] = call;
  const Index tiles = blocks_of(z.Sk, S::rows);
  launch(
      context, {.x = tiles * z.B * heads.kv_heads * heads.splits, .threads = S::threads, .shared_bytes = shared_bytes},
      key_gradients<T, width, wanted, general>, z, ScoreScaling(op.desc), heads, static_cast<int>(tiles),
      ConstHeads(op.dout), op.q, op.k, op.v, GeneralOperands(op.desc), op.lse, delta, op.dk, op.dv, dk_sums, dv_sums);
}

template <class T, int width, bool general>
void launch_backward(Context& context, Launch call) {
  auto& [op, z, heads, delta, dk_sums, dv_sums] = call;
  z.packs = true;
  for (ConstHeads x : {ConstHeads(op.dout), op.q, op.k, op.v, ConstHeads(op.out), ConstHeads(op.dq), ConstHeads(op.dk),
                       ConstHeads(op.dv)})
    z.packs &= in_packs<T>(x);
  launch(context, Grid{.x = Index{z.B} * z.Sq}, z.packs ? deltas<T, 4> : deltas<T, 1>, z, heads, op.v.width, op.dout,
         op.out, delta);
  launch_query_gradient<T, width, general>(context, call);
  if constexpr (width <= 128) {
    launch_key_gradients<T, width, Wanted::dk_dv, general>(context, call);
  } else {
    launch_key_gradients<T, width, Wanted::dk, general>(context, call);
    launch_key_gradients<T, width, Wanted::dv, general>(context, call);
  }
  if (heads.splits == 1) return;
  for (const auto& [from, to] : {std::pair{dk_sums, op.dk}, std::pair{dv_sums, op.dv}})
    launch(context, {.x = Index{z.B} * z.Sk, .threads = row_threads(heads.kv_heads * to.width)}, sum_splits<T>, heads,
           z.B, from, to);
}

// Processes as many sequences, or kv heads of one sequence, at once as the workspace has memory
// for.
template <class T, int width, bool general>
void backward(Context& context, const ops::AttentionBackward& all) {
  const AttentionProblem z(all.desc, all.q, all.k);
  constexpr int rows = KeySteps < T, width, width <= 128 ? Wanted::dk_dv : Wanted::dk, general > ::rows;
  const int heads_per_kv = z.H / z.K;
  // Bytes of D, and of the sums of a split, for one kv head of one sequence.
  const Index delta_bytes = Index{heads_per_kv} * std::max(z.Sq, 1) * size_of(DType::f32);
  const Index sum_bytes = z.Sk * (all.k.width + all.v.width) * size_of(DType::f32);
  const Index kv_heads = Index{z.B} * z.K;
  int splits = head_splits(blocks_of(z.Sk, rows) * kv_heads, heads_per_kv);
  while (splits > 1 && kv_heads * (delta_bytes + splits * sum_bytes) > workspace_size - workspace_padding) --splits;
  const Index bytes = delta_bytes + (splits > 1 ? splits * sum_bytes : 0);
  const Index fit = (context.workspace_bytes - (splits > 1 ? workspace_padding : 0)) / bytes;
  const int step_b = static_cast<int>(std::clamp<Index>(fit / z.K, 1, z.B));
  const int step_kv = static_cast<int>(std::clamp<Index>(fit, 1, z.K));
  for (int b = 0; b < z.B; b += step_b)
    for (int kv = 0; kv < z.K; kv += step_kv) {
      const int sequences = std::min(step_b, z.B - b);
      const HeadRange heads{kv, std::min(step_kv, z.K - kv), heads_per_kv, splits};
      Workspace workspace(context);
      const ops::AttentionBackward slice = slice_sequences(all, b, sequences);
      Launch call{slice, AttentionProblem(slice.desc, slice.q, slice.k), heads,
                  workspace.take({sequences, heads.kv_heads * heads_per_kv, z.Sq}, DType::f32)};
      if (splits > 1) {
        call.dk_sums = workspace.take({splits * sequences, z.Sk, heads.kv_heads, all.k.width}, DType::f32);
        call.dv_sums = workspace.take({splits * sequences, z.Sk, heads.kv_heads, all.v.width}, DType::f32);
      }
      launch_backward<T, width, general>(context, call);
    }
}

}  // namespace

void execute(CudaDevice& device, const ops::AttentionBackward& op) {
  Context& context = device.context();
  if (context.fused_attention && is_fused(op.q, op.k, op.v, op.desc) && context.fused_attention->run(op)) return;
  with_type(op.q.dtype, [&]<class T>(T) {
    with_width(std::max(op.q.width, op.v.width), [&](auto width) {
      with_flag(GeneralOperands::is_needed(op.desc), [&](auto general) { backward<T, width, general>(context, op); });
    });
  });
}

}  // namespace sy::cuda
