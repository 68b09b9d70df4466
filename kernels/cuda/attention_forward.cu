// Attention forward: out = softmax(scores) V, with an online softmax (Milakov and Gimelshein,
// 2018).
//
// A visible pair of query and key costs, in one head of hd elements, 4 hd FLOPs for two products
// and 5 FLOPs for the softmax. A cap adds 2. A tile of keys and values has 2 cols * hd elements,
// read mostly from the L2 cache, for rows * cols pairs. With 128 rows of bf16 that is 128 FLOPs per
// byte, so the kernel is bound by the products.
#include <algorithm>

#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/attention.h"

namespace sy::cuda {

namespace {

using namespace attention;

// Tiles of the kernel. In a general kernel, wide heads leave registers for only half as many rows
// per warp.
template <class T, int width, bool general>
struct Forward {
  static constexpr bool f32 = std::is_same_v<T, float>;
  static constexpr int M = f32 || width > (general ? 64 : 128) ? 1 : 2;
  using Of = Tiles<T, width, M, f32 || M == 2 ? 4 : 8, f32 ? 32 : 64, 1, 2>;
};

template <int M, int N>
__device__ void scale_row(float (&c)[M][N][4], int m, int half, float factor) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    c[m][n][2 * half] *= factor;
    c[m][n][2 * half + 1] *= factor;
  }
}

// Reductions over the four lanes that hold a row.
__device__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Split of the keys (Dao et al., "Flash-Decoding", 2023), because few queries of long sequences
// give too few blocks. The splits depend on the number of keys alone, so that no card and no other
// sequence changes a result. Rows are (sequence, head, query), of the sequences from `first` on.
// Results of the splits:
//   x: [split, rows, width] f32, attention over the keys of one split alone
//   lse: [split, rows], its weight; minus infinity if the query sees no key of the split
struct KeySplits {
  static constexpr Index max_queries = 8, min_keys = 256, max_splits = 32;

  int count, keys, rows, first;

  // Splits for a launch of `sequences` sequences.
  KeySplits(const AttentionProblem& z, Index sequences, Index first_sequence)
      : keys(static_cast<int>(min_keys * blocks_of(std::max(z.Sk, 1), min_keys * max_splits))),
        rows(static_cast<int>(sequences * z.H * z.Sq)),
        first(static_cast<int>(first_sequence)) {
    count = static_cast<int>(blocks_of(z.Sk, keys));
  }
  static bool are_useful(const AttentionDesc& desc, const AttentionProblem& z) {
    return desc.mask.query_offsets && z.Sq <= max_queries && z.Sk > min_keys;
  }
};

// A block takes a tile of queries of one head and iterates over the tiles of visible keys and
// values. If split_keys, it covers one split of the keys. Copies overlap with products: keys are
// loaded while the previous tile's values are in use, and values while their own tile's keys are.
template <class T, int width, bool general, bool split_keys>
__global__ void __launch_bounds__(Forward<T, width, general>::Of::threads, 1)
    forward(const AttentionProblem call, const ScoreScaling scores, int tiles, const KeySplits splits,
            const InHeads<T> q_heads, const InHeads<T> k_heads, const InHeads<T> v_heads, const GeneralOperands special,
            In<std::int32_t> query_offsets, const OutHeads<T> out, Out<float> split_x, Out<float> lse,
            Out<float> largest_scores) {
  using Of = typename Forward<T, width, general>::Of;
  constexpr int M = Of::M, N = Of::cols / 8, W = width / 8;
  static_assert(KeySplits::min_keys % Of::cols == 0);
  const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const int split = split_keys ? block % splits.count : 0, count = split_keys ? splits.count : 1;
  const BlockWork work = block_work(block / count, blocks / count, tiles, call.H);
  const int b = work.b + (split_keys ? splits.first : 0), head = work.head;
  AttentionProblem z = call;
  if (query_offsets != nullptr) z.query_offset = query_offsets[b];
  const int kv_head = head / z.heads_per_kv();
  const int first = (tiles - 1 - work.tile) * Of::rows;
  const int last = min(first + Of::rows, z.Sq) - 1, warp_first = first + warp * 16 * M;
  const auto keys = k_heads.rows(b, kv_head), values = v_heads.rows(b, kv_head);
  const auto mask_operands = of_sequence<general>(special, b, z);

  T* const q = reinterpret_cast<T*>(dynamic_shared());
  T* const k = q + Of::rows * pitch<T>(width);
  T* const v = k + Of::cols * pitch<T>(width);
  T* const scratch = v + Of::cols * pitch<T>(width) + warp * Of::Left::shared_size;
  T* const warp_q = q + warp * 16 * M * pitch<T>(width);

  float o[M][W][4] = {};
  float largest[M][2];     // of each row, before the factor `outer`
  float total[M][2] = {};  // this lane's share of each row's sum of exponentials
  each_row<M>([&](int m, int half) { largest[m][half] = -INFINITY; });
  if constexpr (general && !split_keys)
    if (z.sinks)  // counts as a first score without a value
      each_row<M>([&](int m, int half) {
        largest[m][half] = scores.of_log * special.sinks[head];
        total[m][half] = lane % 4 == 0 ? 1.0f : 0.0f;
      });

  // Keys that some of the queries see, and keys that all of them see.
  const Span by_first = z.keys(mask_operands, first), by_last = z.keys(mask_operands, last);
  Span seen = {by_first.begin, by_last.end};
  const Span seen_by_all = {by_last.begin, by_first.end};
  if constexpr (split_keys) seen = {max(seen.begin, split * splits.keys), min(seen.end, (split + 1) * splits.keys)};
  int key = z.skip_masked(mask_operands, seen.begin / Of::cols * Of::cols, Of::cols, first);
  const int first_row = split_keys ? splits.rows * split + ((b - splits.first) * z.H + head) * z.Sq : 0;
  if (split_keys && key >= seen.end) {  // no query sees a key of the split
    for (int query = first + static_cast<int>(threadIdx.x); query <= last; query += Of::threads)
      lse[first_row + query] = -INFINITY;
    return;
  }
  load_tile<Of::rows, width, Of::threads>(q, q_heads.rows(b, head), first, z.packs);
  load_tile<Of::cols, width, Of::threads>(k, keys, key, z.packs);
  if (key >= seen.end) {  // no query sees a key, and store_tile() uses the memory of q again
    wait_async();
    __syncthreads();
  }
  for (int next; key < seen.end; key = next) {
    next = z.skip_masked(mask_operands, key + Of::cols, Of::cols, first);
    wait_async();
    __syncthreads();
    load_tile<Of::cols, width, Of::threads>(v, values, key, z.packs);
    float s[M][N][4] = {};
    multiply_transposed<width>(s, warp_q, k);

    if (scores.capped) each<M, N>([&](int m, int n, int i) { s[m][n][i] = cap_tanh<T>(scores.inner * s[m][n][i]); });
    if (key < seen_by_all.begin || key + Of::cols > seen_by_all.end || z.needs_element_checks(mask_operands)) {
      // Nothing reads rows after the last query. Kernels without general operands do not check for
      // them, because wide heads have no register left for it.
      each<M, N>([&](int m, int n, int i) {
        const int query = warp_first + row_of(m, i), other = key + column_of(n, i);
        if (!(general ? z.sees(mask_operands, query, other) : z.MaskGeometry::sees(query, other)))
          s[m][n][i] = -INFINITY;
      });
      if constexpr (general)
        each<M, N>([&](int m, int n, int i) {
          const int query = warp_first + row_of(m, i), other = key + column_of(n, i);
          if (s[m][n][i] != -INFINITY)
            s[m][n][i] = z.allows(mask_operands, query, other)
                             ? s[m][n][i] + z.bias(mask_operands, scores, head, query, other)
                             : -INFINITY;
        });
    }

    float shift[M][2];
    each_row<M>([&](int m, int half) { shift[m][half] = largest[m][half]; });
    each<M, N>([&](int m, int n, int i) { largest[m][i / 2] = fmaxf(largest[m][i / 2], s[m][n][i]); });
    each_row<M>([&](int m, int half) {
      const float before = shift[m][half], now = row_max(largest[m][half]);
      largest[m][half] = now;
      // Before the first key, all exponentials are 0.
      shift[m][half] = now == -INFINITY ? 0.0f : scores.outer * now;
      // If the maximum does not change, the factor is exactly 1. The difference of the two products
      // might not be 0, because nvcc may fuse one of them and leave it unrounded.
      const float shrink = exp2_approx(before == now ? 0.0f : scores.outer * (before - now));
      total[m][half] *= shrink;
      if (shrink != 1.0f) scale_row(o, m, half, shrink);
    });
    each<M, N>([&](int m, int n, int i) {
      s[m][n][i] = exp2_approx(scores.outer * s[m][n][i] - shift[m][i / 2]);
      total[m][i / 2] += s[m][n][i];
    });
    const typename Of::Left p(s, scratch);

    wait_async();
    __syncthreads();
    if (next < seen.end) load_tile<Of::cols, width, Of::threads>(k, keys, next, z.packs);
    multiply(o, p, v);
  }

  if constexpr (split_keys) {
    each_row<M>([&](int m, int half) {
      const float sum = row_sum(total[m][half]);
      const int query = warp_first + row_of(m, 2 * half);
      if (lane % 4 == 0 && query < z.Sq)
        lse[first_row + query] = sum > 0 ? (scores.outer * largest[m][half] + log2f(sum)) * ln_2 : -INFINITY;
      scale_row(o, m, half, sum > 0 ? 1 / sum : 0.0f);
    });
    each<M, W>([&](int m, int n, int i) {
      const int query = warp_first + row_of(m, i), c = column_of(n, i);
      if (query < z.Sq && c < out.width) split_x[Index{first_row + query} * out.width + c] = o[m][n][i];
    });
    return;
  }
  each_row<M>([&](int m, int half) {
    const float sum = row_sum(total[m][half]);
    const int query = warp_first + row_of(m, 2 * half);
    if (lane % 4 == 0 && query < z.Sq) {
      const Index row = (Index{b} * z.H + head) * z.Sq + query;
      lse[row] = (scores.outer * largest[m][half] + log2f(sum)) * ln_2;
      if (largest_scores) largest_scores[row] = scores.outer * largest[m][half] * ln_2;
    }
    scale_row(o, m, half, 1 / sum);
  });
  store_tile(o, warp_q, out.rows(b, head), warp_first, z.packs);
}

// Kernel for heads wider than any tile, such as the latents that generation reads. A block takes
// one query of one head. It multiplies the query with wide_keys keys at a time, one key per warp.
// Then each thread adds the values in its columns. A pair costs 2 (hd + vd) FLOPs, by plain
// multiply-adds. Heads that share a key are in different blocks, so each head reads the keys again,
// from the L2 cache at best.
constexpr int wide_keys = 64, wide_warps = 8;

template <class T>
__global__ void wide_forward(const AttentionProblem call, const ScoreScaling scores, const InHeads<T> q_heads,
                             const InHeads<T> k_heads, const InHeads<T> v_heads, const GeneralOperands special,
                             In<std::int32_t> query_offsets, const OutHeads<T> out, Out<float> lse,
                             Out<float> largest_scores) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_size, lane = thread % warp_size;
  const int block = static_cast<int>(blockIdx.x), query = block / call.H % call.Sq, head = block % call.H;
  const int b = block / call.H / call.Sq;
  AttentionProblem z = call;
  if (query_offsets != nullptr) z.query_offset = query_offsets[b];
  const GeneralOperands mask_operands = special.of(b, z);
  const auto queries = q_heads.rows(b, head), keys = k_heads.rows(b, head / z.heads_per_kv()),
             values = v_heads.rows(b, head / z.heads_per_kv());

  float* const x = reinterpret_cast<float*>(dynamic_shared());  // [hd] the query
  // [vd] sums of values times exponentials
  float* const sums = x + queries.width;
  float* const p = sums + values.width;  // [wide_keys]
  const auto query_vector = queries.x + query * queries.stride;
  for (int c = thread; c < queries.width; c += wide_warps * warp_size) x[c] = to_float(query_vector[c]);
  for (int c = thread; c < values.width; c += wide_warps * warp_size) sums[c] = 0;
  // Largest score, before the factor `outer`, and sum of exponentials; the same in all threads.
  float largest = -INFINITY, total = 0;
  if (z.sinks) {
    largest = scores.of_log * special.sinks[head];
    total = 1;
  }
  const Span seen = z.keys(mask_operands, query);
  for (int first = seen.begin; first < seen.end; first += wide_keys) {
    const int count = min(wide_keys, seen.end - first);
    __syncthreads();
    for (int j = warp; j < wide_keys; j += wide_warps) {
      float product = 0;
      if (j < count) {
        const auto key = keys.x + Index{first + j} * keys.stride;
        for (int c = lane; c < queries.width; c += warp_size) product += x[c] * to_float(key[c]);
      }
      product = warp_sum(product);
      if (scores.capped) product = cap_tanh<T>(scores.inner * product);
      if (j >= count || !z.allows(mask_operands, query, first + j))
        product = -INFINITY;
      else
        product += z.bias(mask_operands, scores, head, query, first + j);
      if (lane == 0) p[j] = product;
    }
    __syncthreads();
    const float low = p[lane], high = p[lane + warp_size], before = largest;
    largest = fmaxf(before, warp_max(fmaxf(low, high)));
    const float shift = largest == -INFINITY ? 0.0f : scores.outer * largest;
    const float shrink = exp2_approx(before == largest ? 0.0f : scores.outer * (before - largest));
    const float of_low = exp2_approx(scores.outer * low - shift), of_high = exp2_approx(scores.outer * high - shift);
    total = total * shrink + warp_sum(of_low + of_high);
    __syncthreads();  // all threads have read the scores
    if (warp == 0) {
      p[lane] = of_low;
      p[lane + warp_size] = of_high;
    }
    __syncthreads();
    for (int c = thread; c < values.width; c += wide_warps * warp_size) {
      float sum = sums[c] * shrink;
      for (int j = 0; j < count; ++j) sum += p[j] * to_float(values.x[Index{first + j} * values.stride + c]);
      sums[c] = sum;
    }
  }
  const auto result = out.rows(b, head);
  for (int c = thread; c < values.width; c += wide_warps * warp_size)
    result.x[query * result.stride + c] = from_float<T>(sums[c] / total);
  if (thread > 0) return;
  const Index row = (Index{b} * z.H + head) * z.Sq + query;
  lse[row] = (scores.outer * largest + log2f(total)) * ln_2;
  if (largest_scores) largest_scores[row] = scores.outer * largest * ln_2;
}

// A block combines the splits of one row, in their order, and a sink. An element costs 4 bytes and
// 2 FLOPs per split.
template <class T>
__global__ void combine_splits(const AttentionProblem z, const KeySplits splits, In<float> sinks, In<float> split_x,
                               In<float> split_lse, const OutHeads<T> out, Out<float> lse) {
  const int row = static_cast<int>(blockIdx.x), query = row % z.Sq, head = row / z.Sq % z.H;
  const int b = row / z.Sq / z.H + splits.first;
  const float sink = z.sinks ? sinks[head] : -INFINITY;
  float largest = sink, total = 0;
  for (int split = 0; split < splits.count; ++split)
    largest = fmaxf(largest, split_lse[Index{split} * splits.rows + row]);
  if (z.sinks) total = expf(sink - largest);
  for (int split = 0; split < splits.count; ++split)
    total += expf(split_lse[Index{split} * splits.rows + row] - largest);
  const auto to = out.rows(b, head);
  for (Index c = threadIdx.x; c < out.width; c += blockDim.x) {
    float sum = 0;
    for (int split = 0; split < splits.count; ++split) {
      const Index at = Index{split} * splits.rows + row;
      const float weight = expf(split_lse[at] - largest);
      if (weight > 0) sum += weight * split_x[at * out.width + c];
    }
    to.x[query * to.stride + c] = from_float<T>(sum / total);
  }
  if (threadIdx.x == 0) lse[(Index{b} * z.H + head) * z.Sq + query] = largest + logf(total);
}

// A block copies one token's vectors, which are contiguous in x and in y. An element costs 2w
// bytes.
template <class T, int N>
__global__ void append_kernel(Index tokens, Index row, const InHeads<T> x, In<std::int32_t> offsets,
                              const OutHeads<T> y) {
  const Index b = blockIdx.x / tokens, i = blockIdx.x % tokens;
  const Index from = b * x.sequence_stride + i * x.token_stride;
  const Index to = b * y.sequence_stride + (offsets[b] + i) * y.token_stride;
  for_row<N>(row, [&](Index c) { store(y.x, to + c, load<N>(x.x, from + c)); });
}

// lse: of the rows, or of all splits of the rows of this many sequences.
template <class T, int width, bool general, bool split_keys>
void launch_forward(Context& context, const ops::AttentionForward& op, const AttentionProblem& z,
                    const KeySplits& splits, Index sequences, View split_x, View lse) {
  using Of = typename Forward<T, width, general>::Of;
  const Index tiles = blocks_of(z.Sq, Of::rows);
  launch(context,
         {.x = tiles * sequences * z.H * (split_keys ? splits.count : 1),
          .threads = Of::threads,
          .shared_bytes = Of::shared_elements * static_cast<Index>(sizeof(T))},
         forward<T, width, general, split_keys>, z, ScoreScaling(op.desc), static_cast<int>(tiles), splits, op.q, op.k,
         op.v, GeneralOperands(op.desc), op.desc.mask.query_offsets, Heads(op.out), split_x, lse,
         split_keys ? View() : op.largest);
}

// Processes as many sequences at once as the workspace has memory for their splits.
template <class T, int width>
void forward_split_keys(Context& context, const ops::AttentionForward& op, const AttentionProblem& z) {
  const Index each = KeySplits(z, 1, 0).count * Index{z.H} * z.Sq,
              bytes = each * (op.v.width + 1) * size_of(DType::f32);
  const Index step = std::max<Index>(1, (context.workspace_bytes - 512) / std::max<Index>(bytes, 1));
  for (Index first = 0; first < z.B; first += step) {
    const Index sequences = std::min(step, z.B - first);
    const KeySplits splits(z, sequences, first);
    Workspace workspace(context);
    const View split_x = workspace.take({each * sequences, op.v.width}, DType::f32),
               split_lse = workspace.take({each * sequences}, DType::f32);
    launch_forward<T, width, true, true>(context, op, z, splits, sequences, split_x, split_lse);
    launch(context, {.x = splits.rows, .threads = row_threads(op.v.width, 128)}, combine_splits<T>, z, splits,
           op.desc.sinks, split_x, split_lse, Heads(op.out), op.lse);
  }
}

}  // namespace

void execute(CudaDevice& device, const ops::KvCacheAppend& op) {
  const ConstHeads& x = op.x;
  const Heads& y = op.y;
  with_type_and_packs(x, y, [&]<class T, int N>(T, PackSize<N>) {
    const Index row = x.heads * x.width;
    launch(device.context(), {.x = x.sequences * x.positions, .threads = row_threads(row / N)}, append_kernel<T, N>,
           x.positions, row, x, op.offsets, y);
  });
}

Index CudaDevice::max_head_dim() const {
  const auto shared = static_cast<Index>(properties_.sharedMemPerBlockOptin);
  return shared >= attention_shared_bytes(max_head_width) ? max_head_width : max_narrow_head_width;
}

bool is_fused(const ConstHeads& q, const ConstHeads& k, const ConstHeads& v, const AttentionDesc& desc) {
  constexpr Index max_width = 128, alignment = 16;
  const AttentionMask& mask = desc.mask;
  const auto is_aligned = [](const ConstHeads& x) {
    const Index bytes = size_of(x.dtype);
    return reinterpret_cast<std::uintptr_t>(x.data) % alignment == 0 && x.token_stride * bytes % alignment == 0 &&
           x.head_stride * bytes % alignment == 0 && x.sequence_stride * bytes % alignment == 0;
  };
  return q.dtype == DType::bf16 && q.width == v.width && q.width <= max_width && q.width % 8 == 0 &&
         q.positions == k.positions && is_aligned(q) && is_aligned(k) && is_aligned(v) && desc.softcap == 0 &&
         !desc.bias && !desc.sinks && mask.window == 0 && mask.query_offset == 0 && !mask.sparse &&
         !mask.document_start && !mask.query_offsets && !mask.key_lengths && !mask.prefix_end && !mask.selected;
}

void execute(CudaDevice& device, const ops::AttentionForward& op) {
  const ConstHeads &q = op.q, &k = op.k, &v = op.v;
  const AttentionDesc& desc = op.desc;
  Context& context = device.context();
  if (context.fused_attention && !op.largest && is_fused(q, k, v, desc) && context.fused_attention->run(op)) return;
  with_type(q.dtype, [&]<class T>(T) {
    AttentionProblem z(desc, q, k);
    z.packs = in_packs<T>(q) && in_packs<T>(k) && in_packs<T>(v) && in_packs<T>(ConstView(op.out));
    // Tiles of values are as wide as those of keys. Zeros fill the columns of narrower values: a
    // fifth more FLOPs with widths 192 and 128.
    if (std::max(q.width, v.width) > max_head_width)
      return launch(context,
                    {.x = q.sequences * q.positions * q.heads,
                     .threads = wide_warps * warp_size,
                     .shared_bytes = (q.width + v.width + wide_keys) * size_of(DType::f32)},
                    wide_forward<T>, z, ScoreScaling(desc), q, k, v, GeneralOperands(desc), desc.mask.query_offsets,
                    Heads(op.out), op.lse, op.largest);
    with_width(std::max(q.width, v.width), [&](auto width) {
      // Splits use the general kernels only, because more kernels would take longer to compile.
      if (KeySplits::are_useful(desc, z)) return forward_split_keys<T, width>(context, op, z);
      with_flag(GeneralOperands::is_needed(desc), [&](auto general) {
        launch_forward<T, width, general, false>(context, op, z, KeySplits(z, z.B, 0), z.B, View(), op.lse);
      });
    });
  });
}

}  // namespace sy::cuda
