// Attention forward with one query per sequence, and the cache that it reads.
//
// The keys of a sequence are divided into blocks that begin at multiples of decode_block. Each
// block is a task for all heads, so that memory is read contiguously. The partial softmaxes of the
// blocks are combined in order. A visible pair of query and key costs 2 (hd + vd) + 26 FLOPs in one
// head, and 4 (hd + vd) bytes for all heads of a kv head.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/attention.h"

namespace sy::cpu {

namespace attention {

namespace {

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

}  // namespace

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
      if (z.selected) {
        const auto selected = z.selected_keys(b, 0, keys.begin);
        if (selected.empty() || selected[0] < 0 || selected[0] >= keys.end) return;
      }
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

}  // namespace attention

void execute(CpuDevice&, const ops::KvCacheAppend& op) {
  const ConstHeads& x = op.x;
  const Heads& y = op.y;
  const Index row = x.heads * x.width;
  for_chunks(x.sequences * x.positions, rows_per_chunk(row), [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const Index b = t / x.positions, i = t % x.positions, at = op.offsets.i32()[b] + i;
      SY_ASSERT(at >= 0 && at < y.positions, "position {} of {}", at, y.positions);
      copy_elements(x.span(), b * x.sequence_stride + i * x.token_stride, row, y.span(),
                    b * y.sequence_stride + at * y.token_stride);
    }
  });
}

}  // namespace sy::cpu
