// Attention forward.
#include <algorithm>
#include <cmath>
#include <vector>

#include <omp.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/attention.h"

namespace sy::cpu {
namespace {

using namespace attention;

// Forward of a range of queries in all `heads` heads that read one kv head. They share the packing
// of its keys.
void forward_task(const AttentionProblem& call, Index b, Index kv_head, Range queries, ConstHeads q, ConstHeads k,
                  ConstHeads v, Heads out, float* lse, float* largest_scores) {
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
  for_blocks(z.keys(b, queries), key_block, z.Sk, [&](Range keys) {
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
      if (largest_scores) largest_scores[z.lse_offset(b, head) + i] = state.largest;
    }
    round_sums(out, b, head, queries, sums);
  }
}

}  // namespace

void execute(CpuDevice&, const ops::AttentionForward& op) {
  const AttentionProblem z(op.desc, op.q, op.k, op.v);
  float* const lse = op.lse.f32();
  float* const largest = op.largest ? op.largest.f32() : nullptr;
  if (op.desc.mask.query_offsets && z.Sq == 1) return decode(z, op.q, op.k, op.v, op.out, lse);
  // A range of queries shares the packing of its keys, and should stay in the L2 cache.
  const Index pairs = z.B * z.K, S = z.Sq, threads = omp_get_max_threads();
  const Index even = pairs * S / (4 * threads);
  const Index longest = std::max<Index>(128, 64 * 1024 / (z.heads_per_kv() * z.hd));
  const Index length = round_up(std::min(std::clamp<Index>(even, 128, longest), S), tile_rows);
  const Index ranges = ceil_div(S, length);
#pragma omp parallel for schedule(dynamic)
  for (Index task = 0; task < pairs * ranges; ++task) {
    // The longest rows go first.
    const Index pair = task % pairs, begin = (ranges - 1 - task / pairs) * length;
    forward_task(z, pair / z.K, pair % z.K, {begin, std::min(begin + length, S)}, op.q, op.k, op.v, op.out, lse,
                 largest);
  }
}

}  // namespace sy::cpu
