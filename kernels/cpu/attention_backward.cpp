// Attention backward. With P = exp(score - lse) and D_i = dout_i . out_i:
//   dV = P^T dout,  dP = dout V^T,  dQ = dS K,  dK = dS^T Q.
// The matrix dS is P (dP - D) times the scale and the derivative of the cap.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <omp.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/attention.h"

namespace sy::cpu {
namespace {

using namespace attention;

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
      : z(call.of_sequence(b)), t(tensors), b_(b), kv_head_(kv_head), queries_(of), w(call, of.size()) {}

  // dK and dV of one block of keys from all queries that see it. If want_dq, it also adds to dQ.
  void keys_task(Range keys, bool want_dq) {
    dk_ = sums_of(t.dk, b_, kv_head_, keys, w.dk);
    dv_ = sums_of(t.dv, b_, kv_head_, keys, w.dv);
    clear_masked(keys);
    pack_keys(keys);
    for (Index head = first_head(); head < end_head(); ++head)
      for_blocks(z.queries(b_, keys), query_block, z.Sq,
                 [&](Range queries) { tile(head, queries, keys, want_dq, true); });
    round_sums(t.dk, b_, kv_head_, keys, dk_);
    round_sums(t.dv, b_, kv_head_, keys, dv_);
  }
  // Rounds dQ after the last block of keys.
  void finish_dq() {
    for (Index head = first_head(); head < end_head(); ++head) round_sums(t.dq, b_, head, queries_, dq_of(head));
  }
  // Bias gradient of one head: dbias[origin - distance] += the sums of dS / scale by distance.
  void bias_task(Index head, Index origin, float* dbias) {
    const float factor = 1.0f / z.desc.scale;
    for_blocks({0, z.Sk}, key_block, z.Sk, [&](Range keys) {
      pack_keys(keys);
      for_blocks(z.queries(b_, keys), query_block, z.Sq, [&](Range queries) {
        if (!tile(head, queries, keys, false, false)) return;
        for (Index i = queries.begin; i < queries.end; ++i) {
          const Range visible_keys = z.keys(b_, i);
          const float* const ds = w.ds + (i - queries.begin) * key_block - keys.begin;
          float* const to = dbias + origin - (z.query_offset + i);
          for (Index j = std::max(visible_keys.begin, keys.begin); j < std::min(visible_keys.end, keys.end); ++j)
            to[j] += factor * ds[j];
        }
      });
    });
  }
  // dQ of one block of queries from all keys that they see.
  void queries_task() {
    for_blocks(z.keys(b_, queries_), key_block, z.Sk, [&](Range keys) {
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

  const AttentionProblem z;
  const Gradients& t;
  const Index b_, kv_head_;
  const Range queries_;
  Workspace w;
  HeadRows<float> dk_{}, dv_{};
};

}  // namespace

void execute(CpuDevice&, const ops::AttentionBackward& op) {
  const AttentionProblem z(op.desc, op.q, op.k, op.v);
  const Gradients t{op.dout, op.q, op.k, op.v, op.out, op.lse.f32(), op.dq, op.dk, op.dv};
  const Index pairs = z.B * z.K, threads = omp_get_max_threads();
  const Index rounds = ceil_div(pairs, threads);

  // Either a thread computes all of one kv head with five products per tile. Or, if that would
  // leave threads idle, blocks of keys and blocks of queries are separate tasks, with seven
  // products. Both ways add in the same order.
  if (pairs * 7 >= rounds * threads * 5) {
#pragma omp parallel for schedule(dynamic)
    for (Index pair = 0; pair < pairs; ++pair) {
      Backward backward(z, t, pair / z.K, pair % z.K, {0, z.Sq});
      for_blocks({0, z.Sk}, key_block, z.Sk, [&](Range keys) { backward.keys_task(keys, true); });
      backward.finish_dq();
    }
    return;
  }
  const Index key_blocks = ceil_div(z.Sk, key_block);
  const Index query_blocks = ceil_div(z.Sq, query_block);
  const Index blocks = key_blocks + query_blocks;
#pragma omp parallel for schedule(dynamic)
  for (Index task = 0; task < pairs * blocks; ++task) {
    const Index pair = task / blocks, block = task % blocks, b = pair / z.K, kv_head = pair % z.K;
    if (block < key_blocks) {
      Backward(z, t, b, kv_head).keys_task({block * key_block, std::min((block + 1) * key_block, z.Sk)}, false);
    } else {
      const Index begin = (block - key_blocks) * query_block;
      Backward(z, t, b, kv_head, {begin, std::min(begin + query_block, z.Sq)}).queries_task();
    }
  }
}

// A head is a task, which processes its sequences in order.
void execute(CpuDevice&, const ops::AttentionBackwardLearned& op) {
  const AttentionProblem z(op.desc, op.q, op.k, op.v);
  const Gradients t{op.dout, op.q, op.k, op.v, op.out, op.lse.f32(), {}, {}, {}};
#pragma omp parallel for schedule(dynamic)
  for (Index head = 0; head < z.H; ++head)
    for (Index b = 0; b < z.B; ++b) {
      if (const View dbias = op.dbias)
        Backward(z, t, b, head / z.heads_per_kv())
            .bias_task(head, op.desc.bias_origin(), dbias.f32() + head * dbias.dim(1));
      if (!op.dsinks) continue;
      // The sink's weight is exp(sink - lse), and its value is 0.
      std::vector<float> widened(z.is_bf16 ? 2 * z.vd : 0);
      float sum = 0;
      for (Index i = 0; i < z.Sq; ++i) {
        const auto dout_rows = floats_of(t.dout, b, head, {i, i + 1}, widened.data()),
                   out_rows = floats_of(t.out, b, head, {i, i + 1}, widened.data() + z.vd);
        sum += std::exp(op.desc.sinks.f32()[head] - t.lse[z.lse_offset(b, head) + i]) *
               dot(dout_rows.at(i), out_rows.at(i), z.vd);
      }
      op.dsinks.f32()[head] -= sum;
    }
}

}  // namespace sy::cpu
