// Attention, backward. With P = exp(score - lse) and D_i = dout_i . out_i:
//   dV = P^T dout,  dS = P (dout V^T - D) * the derivative of the cap,  dQ = scale dS K,  dK = scale dS^T Q.
//
// No block adds to what another one does: one kernel sums dQ over keys, another one dK and dV over queries. Both compute P
// and dS anew.
#include <algorithm>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_backend.h"

namespace sy::cuda {

namespace {

using namespace attention;

// The heads of one call: all, or as many kv heads as the workspace holds D for, with the query heads that read them.
struct HeadRange {
  int first_kv, kv_heads;
  int group;
  __device__ int count() const { return kv_heads * group; }
  __device__ int first() const { return first_kv * group; }
};

// D: [B, heads, Sq] of rows of `width` elements, a block for each token, whose heads its warps take in turn.
template <class T, int N>
__global__ void deltas(const Call z, const HeadRange heads, Index width, In<T> dout, In<T> out, Out<float> delta) {
  const int warps = static_cast<int>(blockDim.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
  const Index token = blockIdx.x, b = token / z.Sq, position = token % z.Sq;
  for (int head = static_cast<int>(threadIdx.x) / warp_size; head < heads.count(); head += warps) {
    const Index row = (token * z.H + heads.first() + head) * width;
    float sum = 0;
    for (Index i = lane * N; i < width; i += warp_size * N) {
      const Pack<T, N> x = load<N>(dout, row + i), y = load<N>(out, row + i);
      for (int e = 0; e < N; ++e) sum += to_float(x[e]) * to_float(y[e]);
    }
    sum = warp_sum(sum);
    if (lane == 0) delta[(b * heads.count() + head) * z.Sq + position] = sum;
  }
}

// What a kernel computes. dK and dV of wide heads do not fit the registers together.
enum class Wanted { dq, dk_dv, dk, dv };

template <Wanted wanted>
using Kernel = std::integral_constant<Wanted, wanted>;

template <class T, int width, Wanted wanted, bool documents>
struct Backward {
  static constexpr bool f32 = std::is_same_v<T, float>, wide = width > 128;
  static constexpr bool of_keys = wanted != Wanted::dq;  // the resident rows are keys
  static constexpr bool through_scores = wanted != Wanted::dv,
                        through_values = wanted == Wanted::dv || wanted == Wanted::dk_dv;
  static constexpr int M = !f32 && width * (through_scores + through_values) <= (documents ? 64 : 128) ? 2 : 1;
  static constexpr int cols = f32 ? (wide ? 16 : 32) : (M == 2 || wide ? 32 : 64);
  static constexpr int resident = through_scores ? 2 : 1;
  using Of = Tiles<T, width, M, f32 && wide ? 2 : 4, cols, resident, 3>;
  // lse and D of the queries: of all rows, or of two tiles of columns.
  static constexpr int queries = of_keys ? cols : Of::rows, stats = (of_keys ? 4 : 2) * queries;
  static constexpr Index shared_bytes = Of::shared_elements * sizeof(T) + stats * sizeof(float);
  static_assert(shared_bytes <= attention_shared_bytes(width));
};

// Brings lse and D of queries [first, first + count) to stats: [2, count], as load_tile() does; 0 from S on.
template <int count, int threads>
__device__ void load_stats(float* stats, In<float> lse, In<float> delta, int first, int S) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    load_async<1>(stats + i, lse, first + i, first + i < S);
    load_async<1>(stats + count + i, delta, first + i, first + i < S);
  }
}

// A block takes a tile of rows of one head, queries or keys, and passes over the tiles of columns that see some of them, or
// are seen: keys, or queries of all heads that read these keys. With X, Y the rows' and the columns' part in Q K^T, U, W
// those in dout V^T:
//   P = exp(score(X Y^T) - lse),  dS = P (U W^T - D),  dX = dS Y,  dV = P W.
// The next Y arrives while this one is used, the next W during dS Y.
template <class T, int width, Wanted wanted, bool documents>
__global__ void __launch_bounds__(Backward<T, width, wanted, documents>::Of::threads)
    backward(const Call z, const Scores scores, const HeadRange heads, int tiles, const InHeads<T> dout,
             const InHeads<T> q, const InHeads<T> k, const InHeads<T> v, In<std::int32_t> first_key, In<float> lse,
             In<float> delta, const OutHeads<T> dq, const OutHeads<T> dk, const OutHeads<T> dv_out) {
  using B = Backward<T, width, wanted, documents>;
  using Of = typename B::Of;
  constexpr int M = Of::M, N = Of::cols / 8, W = width / 8, tile_of_cols = Of::cols * pitch<T>(width);
  const int warp = static_cast<int>(threadIdx.x) / warp_size;

  // Of all blocks, the rows that see most, or are seen most, go first.
  const int block = static_cast<int>(blockIdx.x), block_heads = B::of_keys ? heads.kv_heads : heads.count();
  const int first = (B::of_keys ? block % tiles : tiles - 1 - block % tiles) * Of::rows;
  const int b = block / tiles / block_heads, block_head = block / tiles % block_heads;
  const int kv_head = heads.first_kv + (B::of_keys ? block_head : block_head / heads.group);
  const int first_head = B::of_keys ? kv_head * heads.group : heads.first() + block_head;
  const int end_head = first_head + (B::of_keys ? heads.group : 1);
  const auto of_document = first_keys<documents>(first_key, b, z);
  const auto seen = [&](int row) { return B::of_keys ? z.queries(of_document, row) : z.keys(of_document, row); };
  const int last = min(first + Of::rows, B::of_keys ? z.Sk : z.Sq) - 1, warp_first = first + warp * 16 * M;
  const Span by_first = seen(first), by_last = seen(last);
  const int begin = by_first.begin / Of::cols * Of::cols, end = by_last.end;
  const Span seen_by_all = {by_last.begin, by_first.end};

  T* const x = reinterpret_cast<T*>(dynamic_shared());
  T* const u = x + Of::rows * pitch<T>(width);
  T* const y = x + B::resident * Of::rows * pitch<T>(width);  // two tiles
  T* const w = y + 2 * tile_of_cols;
  T* const scratch = w + tile_of_cols + warp * Of::Left::shared_size;
  float* const stats = reinterpret_cast<float*>(x + Of::shared_elements);
  T* const warp_x = x + warp * 16 * M * pitch<T>(width);
  T* const warp_u = u + warp * 16 * M * pitch<T>(width);

  const auto load_query_stats = [&](int which, int head, int from) {
    load_stats<B::queries, Of::threads>(stats + 2 * which * B::queries, lse + (Index{b} * z.H + head) * z.Sq,
                                        delta + (Index{b} * heads.count() + head - heads.first()) * z.Sq, from, z.Sq);
  };
  const auto load_y = [&](int which, int head, int from) {
    load_tile<Of::cols, width, Of::threads>(y + which * tile_of_cols, B::of_keys ? q.rows(b, head) : k.rows(b, kv_head),
                                            from, z.packs);
    if (B::of_keys) load_query_stats(which, head, from);
  };
  const auto load_w = [&](int head, int from) {
    load_tile<Of::cols, width, Of::threads>(w, B::of_keys ? dout.rows(b, head) : v.rows(b, kv_head), from, z.packs);
  };

  load_tile<Of::rows, width, Of::threads>(x, B::of_keys ? k.rows(b, kv_head) : q.rows(b, first_head), first, z.packs);
  if (B::through_scores)
    load_tile<Of::rows, width, Of::threads>(u, B::of_keys ? v.rows(b, kv_head) : dout.rows(b, first_head), first,
                                            z.packs);
  if (!B::of_keys) load_query_stats(0, first_head, first);
  int head = first_head, col = begin;
  load_y(0, head, col);
  load_w(head, col);

  float dx[M][W][4] = {}, dv[M][W][4] = {};
  for (int which = 0;; which ^= 1) {
    const int next_head = col + Of::cols < end ? head : head + 1;
    const int next_col = next_head == head ? col + Of::cols : begin;
    const bool more = next_head < end_head;
    wait_async();
    __syncthreads();
    if (more) load_y(which ^ 1, next_head, next_col);
    const T* const this_y = y + which * tile_of_cols;
    float p[M][N][4] = {}, ds[M][N][4] = {};
    multiply_transposed<width>(p, warp_x, this_y);
    if (B::through_scores) multiply_transposed<width>(ds, warp_u, w);

    // From products to P and dS.
    const float* const query_lse = stats + (B::of_keys ? 2 * which * B::queries : warp * 16 * M);
    const float* const query_delta = query_lse + B::queries;
    const auto query_of = [](int m, int n, int i) { return B::of_keys ? column_of(n, i) : row_of(m, i); };
    each<M, N>([&](int m, int n, int i) { ds[m][n][i] -= query_delta[query_of(m, n, i)]; });
    if (scores.capped)
      each<M, N>([&](int m, int n, int i) {
        p[m][n][i] = cap_tanh<T>(scores.inner * p[m][n][i]);
        ds[m][n][i] *= 1 - p[m][n][i] * p[m][n][i];
      });
    each<M, N>([&](int m, int n, int i) {
      p[m][n][i] = exp2_approx(scores.outer * p[m][n][i] - log2_e * query_lse[query_of(m, n, i)]);
    });
    if (col < seen_by_all.begin || col + Of::cols > seen_by_all.end) {
      each<M, N>([&](int m, int n, int i) {
        const int row = warp_first + row_of(m, i), column = col + column_of(n, i);
        if (!(B::of_keys ? z.sees(column, row) : z.sees(row, column))) p[m][n][i] = 0;
      });
      if constexpr (documents)
        each<M, N>([&](int m, int n, int i) {
          const int row = warp_first + row_of(m, i), column = col + column_of(n, i);
          if (!(B::of_keys ? z.same_document(of_document, column, row) : z.same_document(of_document, row, column)))
            p[m][n][i] = 0;
        });
    }
    each<M, N>([&](int m, int n, int i) { ds[m][n][i] *= p[m][n][i]; });

    if (B::through_values) multiply(dv, typename Of::Left(p, scratch), w);
    __syncthreads();
    if (more) load_w(next_head, next_col);
    if (B::through_scores) multiply(dx, typename Of::Left(ds, scratch), this_y);
    if (!more) break;
    head = next_head, col = next_col;
  }

  if (B::through_scores) {
    each<M, W>([&](int m, int n, int i) { dx[m][n][i] *= scores.scale; });
    store_tile(dx, warp_x, B::of_keys ? dk.rows(b, kv_head) : dq.rows(b, first_head), warp_first, z.packs);
  }
  if (B::through_values) store_tile(dv, warp_x, dv_out.rows(b, kv_head), warp_first, z.packs);
}

// The operands of a call.
struct Operands {
  ConstView dout;
  ConstHeads q, k, v;
  ConstView out, lse;
  Heads dq, dk, dv;
  ConstView first_key;

  Operands rows(Index begin, Index count) const {
    return {dout.rows(begin, count), q.rows(begin, count),
            k.rows(begin, count),    v.rows(begin, count),
            out.rows(begin, count),  lse.rows(begin, count),
            dq.rows(begin, count),   dk.rows(begin, count),
            dv.rows(begin, count),   first_key ? first_key.rows(begin, count) : first_key};
  }
};

template <class T, int width, Wanted wanted, bool documents>
void launch_backward(Context& context, const Call& z, const Scores& scores, const HeadRange& heads, const Operands& o,
                     ConstView delta) {
  using B = Backward<T, width, wanted, documents>;
  const Index tiles = blocks_of(B::of_keys ? z.Sk : z.Sq, B::Of::rows);
  launch(context,
         {.x = tiles * z.B * heads.kv_heads * (B::of_keys ? 1 : heads.group),
          .threads = B::Of::threads,
          .shared_bytes = B::shared_bytes},
         backward<T, width, wanted, documents>, z, scores, heads, static_cast<int>(tiles), in_heads<T>(o.dout),
         in_heads<T>(o.q), in_heads<T>(o.k), in_heads<T>(o.v), in<std::int32_t>(o.first_key), in<float>(o.lse),
         in<float>(delta), out_heads<T>(o.dq), out_heads<T>(o.dk), out_heads<T>(o.dv));
}

// All heads of the operands, or those of `heads`. delta: [B, heads, Sq], to be computed.
void backward_part(Context& context, const AttentionDesc& desc, const HeadRange& heads, const Operands& o, View delta) {
  with_type(o.q.dtype, [&](auto type) {
    using T = decltype(type);
    Call z(desc, o.q, o.k);
    z.packs = true;
    for (ConstHeads x :
         {ConstHeads(o.dout), o.q, o.k, o.v, ConstHeads(o.out), ConstHeads(o.dq), ConstHeads(o.dk), ConstHeads(o.dv)})
      z.packs &= in_packs<T>(x);
    launch(context, Grid{.x = Index{z.B} * z.Sq}, z.packs ? deltas<T, 4> : deltas<T, 1>, z, heads, o.v.width,
           in<T>(o.dout), in<T>(o.out), cuda::out<float>(delta));
    with_width(std::max(o.q.width, o.v.width), [&](auto width) {
      const auto run = [&](auto wanted) {
        o.first_key ? launch_backward<T, width, wanted, true>(context, z, Scores(desc), heads, o, delta)
                    : launch_backward<T, width, wanted, false>(context, z, Scores(desc), heads, o, delta);
      };
      run(Kernel<Wanted::dq>{});
      if constexpr (width <= 128) {
        run(Kernel<Wanted::dk_dv>{});
      } else {
        run(Kernel<Wanted::dk>{});
        run(Kernel<Wanted::dv>{});
      }
    });
  });
}

}  // namespace

void CudaBackend::do_attention_backward(const AttentionDesc& desc, ConstView dout, ConstHeads q, ConstHeads k,
                                        ConstHeads v, ConstView out, ConstView lse, Heads dq, Heads dk, Heads dv) {
  const Call all(desc, q, k);
  const Operands operands{dout, q, k, v, out, lse, dq, dk, dv, desc.visible.first_key};
  // The sequences and kv heads whose D fits the workspace: all heads of some sequences, or some of one.
  const int group = all.H / all.K;
  const Index fit = context_.workspace_bytes / (Index{group} * std::max(all.Sq, 1) * size_of(DType::f32));
  const int step_b = static_cast<int>(std::clamp<Index>(fit / all.K, 1, all.B));
  const int step_kv = static_cast<int>(std::clamp<Index>(fit, 1, all.K));
  for (int b = 0; b < all.B; b += step_b)
    for (int kv = 0; kv < all.K; kv += step_kv) {
      const int batch = std::min(step_b, all.B - b);
      const HeadRange heads{kv, std::min(step_kv, all.K - kv), group};
      const View delta = Workspace(context_).take({batch, heads.kv_heads * group, all.Sq}, DType::f32);
      backward_part(context_, desc, heads, operands.rows(b, batch), delta);
    }
}

}  // namespace sy::cuda
