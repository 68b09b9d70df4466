// Router: scores, choice of experts, their gradient, and the load-balancing loss.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/formulas/score.h"
#include "kernels/ops/load_balancing.h"
#include "kernels/ops/random.h"
#include "kernels/ops/route.h"

namespace sy::cpu {

namespace {

// p: [e] = softmax(z); returns logsumexp(z). A logit costs 24 FLOPs.
float softmax(const float* z, Index e, float* p) {
  float largest = z[0];
#pragma omp simd reduction(max : largest)
  for (Index i = 0; i < e; ++i) largest = z[i] > largest ? z[i] : largest;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index i = 0; i < e; ++i) {
    p[i] = exp_(z[i] - largest);
    sum += p[i];
  }
  const float inverse = 1 / sum;
#pragma omp simd
  for (Index i = 0; i < e; ++i) p[i] *= inverse;
  return largest + std::log(sum);
}

using formulas::log_slope, formulas::min_score_sum, formulas::score_of;

struct Math {
  static float sigmoid(float z) { return sigmoid_(z); }
  static float softplus(float z) { return std::max(z, 0.0f) + std::log1p(exp_(-std::abs(z))); }
  static float sqrt(float x) { return std::sqrt(x); }
  static float max(float a, float b) { return std::max(a, b); }
};

// The candidates with the k largest keys so far, by falling key. A candidate passes another only if
// its key is larger, so that of equal keys the first one stays ahead. A NaN passes nothing, which
// still leaves k distinct candidates.
class TopK {
 public:
  TopK(int k, std::int32_t* index, float* key) : k_(k), index_(index), key_(key) {}
  void insert(std::int32_t index, float key) {
    if (size_ == k_ && !(key > key_[k_ - 1])) return;
    int i = size_ < k_ ? size_++ : k_ - 1;
    for (; i > 0 && key > key_[i - 1]; --i) {
      index_[i] = index_[i - 1];
      key_[i] = key_[i - 1];
    }
    index_[i] = index;
    key_[i] = key;
  }

 private:
  int k_, size_ = 0;
  std::int32_t* index_;
  float* key_;
};

// Chooses the experts of a token. Each thread has its own object.
struct ExpertSelector {
  const RouteDesc& desc;
  Index num_experts;
  std::vector<float> selection, key;
  std::vector<std::int32_t> group;
  std::vector<char> allowed;

  ExpertSelector(const RouteDesc& d, Index e)
      : desc(d), num_experts(e), selection(e), key(e), group(d.groups), allowed(d.groups, true) {}

  // chosen: [k] = the experts with the largest selection scores.
  void select(std::int32_t* chosen) {
    const Index per_group = num_experts / desc.groups;
    if (desc.topk_groups < desc.groups) select_groups(per_group);
    TopK best(desc.top_k, chosen, key.data());
    for (Index g = 0; g < desc.groups; ++g)
      if (allowed[g])
        for (Index e = g * per_group; e < (g + 1) * per_group; ++e)
          best.insert(static_cast<std::int32_t>(e), selection[e]);
  }

 private:
  void select_groups(Index per_group) {
    TopK best(desc.topk_groups, group.data(), key.data());
    for (Index g = 0; g < desc.groups; ++g) {
      std::int32_t index[2];
      float scores[2] = {0, 0};
      TopK best_in_group(desc.group_score == GroupScore::top2 ? 2 : 1, index, scores);
      for (Index e = g * per_group; e < (g + 1) * per_group; ++e) best_in_group.insert(0, selection[e]);
      best.insert(static_cast<std::int32_t>(g), scores[0] + scores[1]);
    }
    std::fill(allowed.begin(), allowed.end(), false);
    for (int i = 0; i < desc.topk_groups; ++i) allowed[group[i]] = true;
  }
};

// Calls f(index, number) for the elements of t_all rows of n. `index` counts the elements; `number`
// comes from the stream.
template <class F>
void for_numbers(const RandomDesc& desc, const std::int64_t* index, Index t_all, Index n, const F& f) {
  for_chunks(t_all, rows_per_chunk(64 * n), [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t)
      for (Index i = 0; i < n; ++i) f(t * n + i, desc.scale * static_cast<float>(desc.number(index[t], i, n)));
  });
}

}  // namespace

// A number costs 4 bytes and a block of Philox.
void execute(CpuDevice&, const ops::Draw& op) {
  for_numbers(op.desc, op.index.i64(), op.x.dim(0), op.x.dim(1),
              [&](Index at, float number) { op.x.f32()[at] = number; });
}

// A block of Philox costs far more than widening and rounding one element at a time.
namespace {

float element(ConstView x, Index i) {
  return x.dtype() == DType::bf16 ? float{x.as<Bf16>()[i]} : x.f32()[i];
}
void set_element(View y, Index i, float value) {
  if (y.dtype() == DType::bf16)
    y.as<Bf16>()[i] = value;
  else
    y.f32()[i] = value;
}

}  // namespace

// An element costs 8 bytes and a block of Philox.
void execute(CpuDevice&, const ops::Jitter& op) {
  for_numbers(op.desc, op.index.i64(), op.x.dim(0), op.x.dim(1), [&](Index at, float number) {
    const float value = element(op.x, at) * (1 + number);
    set_element(op.y, at, op.accumulate ? element(op.y, at) + value : value);
  });
}

// An element costs 12 bytes and a block of Philox, in forward and in backward.
void execute(CpuDevice&, const ops::NoisyGatingForward& op) {
  for_numbers(op.desc, op.index.i64(), op.x.dim(0), op.x.dim(1),
              [&](Index at, float number) { op.x.f32()[at] += number * Math::softplus(op.stddev.f32()[at]); });
}
void execute(CpuDevice&, const ops::NoisyGatingBackward& op) {
  for_numbers(op.desc, op.index.i64(), op.dx.dim(0), op.dx.dim(1), [&](Index at, float number) {
    set_element(op.dstddev, at, element(op.dx, at) * number * sigmoid_(op.stddev.f32()[at]));
  });
}

// A logit costs 4 bytes and 25 FLOPs, 48 with sigmoid scores. The choice compares each with the
// k-th best so far.
void execute(CpuDevice&, const ops::RouteForward& op) {
  const RouteDesc desc = op.desc;
  const ConstView logits = op.logits, bias = op.bias, noise = op.noise;
  const Index t_all = logits.dim(0), e = logits.dim(1), k = desc.top_k, segments = op.counts.dim(0);
  const Index segment_tokens = t_all / segments;
  // Each segment is divided into `chunks` chunks of tokens.
  const Index grain = std::max(rows_per_chunk(4 * e), (segment_tokens + 63) / 64);
  const Index chunks = ceil_div(segment_tokens, grain);
  const auto chunk_counts = scratch<std::int32_t>(segments * chunks * e);
  const auto chunk_probability = scratch<float>(segments * chunks * e);
  const auto chunk_z_squared = scratch<double>(segments * chunks);

  const Index grain_chunks = std::max<Index>(1, rows_per_chunk(4 * e) / segment_tokens);
  for_chunks(segments * chunks, grain_chunks, [&](Index first, Index last) {
    ExpertSelector selector(desc, e);
    std::vector<float> p(e), scores(e);
    const float* const score = desc.score == Score::softmax ? p.data() : scores.data();
    for (Index chunk = first; chunk < last; ++chunk) {
      std::int32_t* const count = &chunk_counts[chunk * e];
      float* const sum_p = &chunk_probability[chunk * e];
      double sum_z = 0;
      std::fill_n(count, e, 0);
      std::fill_n(sum_p, e, 0.0f);
      const Index in_segment = chunk % chunks * grain, begin = chunk / chunks * segment_tokens + in_segment;
      const Index end = begin + std::min(grain, segment_tokens - in_segment);
      for (Index t = begin; t < end; ++t) {
        std::int32_t* const chosen = op.experts.i32() + t * k;
        float* const weight = op.weights.f32() + t * k;
        if (op.token_mask && op.token_mask.i32()[t] == 0) {
          std::fill_n(chosen, k, -1);
          std::fill_n(weight, k, 0.0f);
          continue;
        }
        const float* const z = logits.f32() + t * e;
        const float lse = softmax(z, e, p.data());
        sum_z += static_cast<double>(lse) * lse;
        if (desc.score == Score::sigmoid)
#pragma omp simd
          for (Index i = 0; i < e; ++i) scores[i] = sigmoid_(z[i]);
        else if (desc.score != Score::softmax)
          for (Index i = 0; i < e; ++i) scores[i] = score_of<Math>(desc.score, z[i], p[i]);
        if (desc.balances_by_score()) {
          const float all = min_score_sum + sum_of(e, [&](Index i) { return scores[i]; });
          for (Index i = 0; i < e; ++i) p[i] = scores[i] / all;
        }
        const float* const select = desc.select_by_logit ? z : score;
        for (Index i = 0; i < e; ++i) {
          selector.selection[i] = bias ? select[i] + bias.f32()[i] : select[i];
          sum_p[i] += p[i];
        }
        if (noise)
          for (Index i = 0; i < e; ++i) selector.selection[i] += noise.f32()[t * e + i];
        if (!op.replay) selector.select(chosen);
        float sum = min_score_sum;
        for (Index j = 0; j < k; ++j) {
          ++count[chosen[j]];
          sum += score[chosen[j]];
        }
        for (Index j = 0; j < k; ++j) weight[j] = desc.scale * (score[chosen[j]] / (desc.renormalize ? sum : 1.0f));
      }
      chunk_z_squared[chunk] = sum_z;
    }
  });

  double sum_z = 0;
  for (Index g = 0; g < segments; ++g) {
    std::int32_t* const count = op.counts.i32() + g * e;
    float* const sum_p = op.probability.f32() + g * e;
    std::fill_n(count, e, 0);
    std::fill_n(sum_p, e, 0.0f);
    for (Index chunk = g * chunks; chunk < (g + 1) * chunks; ++chunk) {
      for (Index i = 0; i < e; ++i) {
        count[i] += chunk_counts[chunk * e + i];
        sum_p[i] += chunk_probability[chunk * e + i];
      }
      sum_z += chunk_z_squared[chunk];
    }
  }
  *op.z_squared.as<double>() = sum_z;
}

// Gradient of the router. s are the scores, p is the softmax, and c = dweights * scale.
//   renormalized, S = sum_j s_j:   ds_j = (c_j - sum_i c_i s_i / S) / S,   otherwise   ds_j = c_j
//   softmax: dz = s * (ds - sum_i ds_i s_i),   sigmoid: dz = ds * s * (1 - s)
//   other scores: dz = ds * s * log_slope
//   dz += p * (dprobability - sum_i dprobability_i p_i) + z_factor * 2 * logsumexp * p
//   balances_by_score, q = s / sum_i s_i: dz += p * (...) becomes
//     dz += q * log_slope * (dprobability - sum_i dprobability_i q_i)
// A logit costs 8 bytes and 28 FLOPs.
void execute(CpuDevice&, const ops::RouteBackward& op) {
  const ConstView logits = op.logits, experts = op.experts, dweights = op.dweights, dprobability = op.dprobability;
  const RouteDesc desc = op.desc;
  const float z_factor = op.z_factor;
  const Index t_all = logits.dim(0), e = logits.dim(1), k = desc.top_k;
  const Index segment_tokens = t_all / dprobability.dim(0);
  for_chunks(t_all, rows_per_chunk(4 * e), [&](Index begin, Index end) {
    std::vector<float> p(e), q(e), s(k), ds(k);
    Results outputs(op.dlogits, e);
    for (Index t = begin; t < end; ++t) {
      const float* const z = logits.f32() + t * e;
      const float* const dp = dprobability.f32() + t / segment_tokens * e;
      const std::int32_t* const chosen = experts.i32() + t * k;
      float* const dz = outputs.begin(t * e);
      if (chosen[0] < 0) {
        std::fill_n(dz, e, 0.0f);
        continue;
      }
      const float lse = softmax(z, e, p.data());

      float sum = min_score_sum, sum_c_s = 0;
      for (Index j = 0; j < k; ++j) {
        s[j] = score_of<Math>(desc.score, z[chosen[j]], p[chosen[j]]);
        ds[j] = desc.scale * dweights.f32()[t * k + j];
        sum += s[j];
        sum_c_s += ds[j] * s[j];
      }
      if (desc.renormalize)
        for (Index j = 0; j < k; ++j) ds[j] = (ds[j] - sum_c_s / sum) / sum;

      if (desc.balances_by_score()) {
        float all = min_score_sum, inner = 0;
        for (Index i = 0; i < e; ++i) all += q[i] = score_of<Math>(desc.score, z[i], p[i]);
        for (Index i = 0; i < e; ++i) inner += dp[i] * q[i] / all;
        for (Index i = 0; i < e; ++i)
          dz[i] = z_factor * 2 * lse * p[i] + q[i] / all * log_slope<Math>(desc.score, z[i], q[i]) * (dp[i] - inner);
        for (Index j = 0; j < k; ++j) dz[chosen[j]] += ds[j] * s[j] * log_slope<Math>(desc.score, z[chosen[j]], s[j]);
        continue;
      }
      // The gradient through the softmax is p * (d - sum d p). Here d is dp, and for the chosen
      // experts dp + ds.
      float inner = 0;
#pragma omp simd reduction(+ : inner)
      for (Index i = 0; i < e; ++i) inner += dp[i] * p[i];
      if (desc.score == Score::softmax)
        for (Index j = 0; j < k; ++j) inner += ds[j] * s[j];
      const float all = z_factor * 2 * lse - inner;
#pragma omp simd
      for (Index i = 0; i < e; ++i) dz[i] = p[i] * (dp[i] + all);
      for (Index j = 0; j < k; ++j) dz[chosen[j]] += ds[j] * s[j] * log_slope<Math>(desc.score, z[chosen[j]], s[j]);
    }
  });
}

void execute(CpuDevice&, const ops::LoadBalancingLoss& op) {
  const LoadBalancingDesc& desc = op.desc;
  const ConstView counts = op.counts, scope_counts = op.scope_counts;
  const Index layers = counts.dim(0), segments = counts.dim(1), e = counts.dim(2);
  const Index scopes = scope_counts.dim(0) * segments / desc.per_scope;
  const RouterSums offsets{e};
  for (Index l = 0; l < layers; ++l) {
    double* const layer_sums = op.sums ? op.sums.as<double>() + l * offsets.size() : nullptr;
    // The layers of the loss.
    const Index first_layer = desc.together ? 0 : l, end_layer = desc.together ? layers : l + 1;
    for (Index g = 0; g < segments; ++g) {
      const Index scope = std::min(scopes - 1, (desc.first + g) / desc.per_scope);
      for (Index x = 0; x < e; ++x) {
        Index assigned = 0;
        for (Index i = scope * desc.per_scope; i < (scope + 1) * desc.per_scope; ++i)
          for (Index layer = first_layer; layer < end_layer; ++layer)
            assigned += scope_counts.i32()[((i / segments * layers + layer) * segments + i % segments) * e + x];
        const double gradient = desc.factor * static_cast<double>(assigned);
        const Index here = (l * segments + g) * e + x;
        op.dprobability.f32()[here] = static_cast<float>(gradient);
        if (!layer_sums) continue;
        const float p = op.probability.f32()[here];
        const std::int32_t count = counts.i32()[here];
        layer_sums[offsets.routed() + x] += count;
        layer_sums[offsets.dropped() + x] += count;
        layer_sums[offsets.probability() + x] += p;
        layer_sums[offsets.loss()] += gradient * p;
      }
    }
    if (!layer_sums) continue;
    for (Index x = 0; x < e; ++x) layer_sums[offsets.dropped() + x] -= op.tokens_per_expert.i32()[l * e + x];
    layer_sums[offsets.loss() + 1] += desc.z_factor * op.z_squared.as<double>()[l];
  }
}

}  // namespace sy::cpu
