// Reference implementation of the operations of kernels/ops/: plain loops in double precision. It
// defines each operation, and tests compare devices with it.
//
// Shapes are those of kernels/ops/. All arrays are row-major doubles, even those of integers. The
// array of an absent operand is empty. Gradients are finite differences of these functions. The
// gradient of attention alone is written out, and its tests compare it with finite differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/ops/capacity.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/load_balancing.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/qk_norm.h"
#include "kernels/ops/route.h"

namespace sy::reference {

using Numbers = std::vector<double>;

inline Index whole(double x) {
  return static_cast<Index>(x);
}

inline double dot(const Numbers& a, const Numbers& b) {
  SY_ASSERT(a.size() == b.size(), "dot of {} and {} numbers", a.size(), b.size());
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// ---- products ----

// op(a) op(b): [m, n]
struct Transpose {
  bool a = false, b = false;
};
inline Numbers gemm(Transpose transpose, Index m, Index n, Index q, const Numbers& a, const Numbers& b) {
  Numbers c(m * n, 0.0);
  for (Index i = 0; i < m; ++i)
    for (Index l = 0; l < q; ++l) {
      const double x = transpose.a ? a[l * m + i] : a[i * q + l];
      for (Index j = 0; j < n; ++j) c[i * n + j] += x * (transpose.b ? b[j * q + l] : b[l * n + j]);
    }
  return c;
}

// x: [R, Q], w: [E, N, Q], offsets: [E+1] -> [R, N]
inline Numbers grouped_gemm(Index n, Index q, const Numbers& x, const Numbers& w, const Numbers& offsets) {
  Numbers y(whole(offsets.back()) * n, 0.0);
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e)
    for (Index r = whole(offsets[e]); r < whole(offsets[e + 1]); ++r)
      for (Index i = 0; i < n; ++i)
        for (Index l = 0; l < q; ++l) y[r * n + i] += x[r * q + l] * w[(static_cast<Index>(e) * n + i) * q + l];
  return y;
}

// Adds scale * bias of the row's expert to columns [first, first + n) of y: [R, width].
//   bias: [E, n]; scale: [R], empty means 1
inline Numbers grouped_bias(Index n, Index first, Index width, const Numbers& bias, const Numbers& scale,
                            const Numbers& offsets, Numbers y) {
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e)
    for (Index r = whole(offsets[e]); r < whole(offsets[e + 1]); ++r)
      for (Index i = 0; i < n; ++i)
        y[r * width + first + i] += (scale.empty() ? 1.0 : scale[r]) * bias[static_cast<Index>(e) * n + i];
  return y;
}

inline Numbers bias_forward(Index t, Index n, const Numbers& bias, Numbers y) {
  for (Index r = 0; r < t; ++r)
    for (Index i = 0; i < n; ++i) y[r * n + i] += bias[i];
  return y;
}

// ---- norms ----

struct Norm {
  Numbers y, moments;
};

inline Norm norm(const NormDesc& desc, Index t, Index d, const Numbers& x, const Numbers& weight, const Numbers& bias) {
  Norm out{Numbers(t * d), Numbers(t * 2)};
  for (Index r = 0; r < t; ++r) {
    double mean = 0, squares = 0;
    if (desc.kind == NormKind::layernorm)
      for (Index i = 0; i < d; ++i) mean += x[r * d + i] / static_cast<double>(d);
    for (Index i = 0; i < d; ++i) squares += (x[r * d + i] - mean) * (x[r * d + i] - mean);
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(d) + static_cast<double>(desc.eps));
    for (Index i = 0; i < d; ++i)
      out.y[r * d + i] = (x[r * d + i] - mean) * inverse * (desc.offset + weight[i]) + (bias.empty() ? 0.0 : bias[i]);
    out.moments[2 * r] = mean;
    out.moments[2 * r + 1] = inverse;
  }
  return out;
}

// ---- FFN ----

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

inline double activation(const FfnActivation& desc, double x) {
  switch (desc.act) {
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x * sigmoid(desc.beta * x);
    case Activation::silu_clamped:
      x = std::min<double>(x, desc.limit);
      return x * sigmoid(desc.beta * x);
    case Activation::relu2:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::sigmoid:
      return sigmoid(x);
    case Activation::identity:
      return x;
    case Activation::hardtanh:
      return std::clamp<double>(x, -desc.limit, desc.limit);
  }
  return std::nan("");
}

inline double up_projection(const FfnActivation& desc, double x) {
  return desc.act == Activation::silu_clamped ? 1 + std::clamp<double>(x, -desc.limit, desc.limit) : x;
}

inline Numbers ffn_activation(const FfnActivation& desc, Index rows, Index f, const Numbers& h,
                              const Numbers& row_scale) {
  Numbers y(rows * f);
  const Index width = desc.gated ? 2 * f : f;
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < f; ++i)
      y[r * f + i] = (row_scale.empty() ? 1.0 : row_scale[r]) * activation(desc, h[r * width + i]) *
                     (desc.gated ? up_projection(desc, h[r * width + f + i]) : 1.0);
  return y;
}

// ---- positions ----

// x: [T, all_heads, hd], table: [positions, half, 2]
inline Numbers rope(Index all_heads, Index hd, Index heads, Index half, const Numbers& positions, const Numbers& table,
                    bool inverse, Numbers x, RopePairs pairs = RopePairs::half) {
  const bool neighbours = pairs == RopePairs::interleaved;
  for (std::size_t t = 0; t < positions.size(); ++t)
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < half; ++i) {
        double& a = x[(static_cast<Index>(t) * all_heads + h) * hd + (neighbours ? 2 * i : i)];
        double& b = (&a)[neighbours ? 1 : half];
        const double cosine = table[(whole(positions[t]) * half + i) * 2];
        const double sine = table[(whole(positions[t]) * half + i) * 2 + 1] * (inverse ? -1 : 1);
        std::tie(a, b) = std::pair(a * cosine - b * sine, a * sine + b * cosine);
      }
  return x;
}

// QK-norm of each of the first q + k heads, then the rotation if there is a table.
//   weight: [2, hd], or [q + k, hd] if desc.each_head
struct HeadQkNormed {
  Numbers y, inverse;
};
inline HeadQkNormed head_qk_norm(const HeadQkNorm& desc, Index all, Index hd, Index half, const Numbers& weight,
                                 const Numbers& positions, const Numbers& table, const Numbers& x) {
  const Index heads = desc.q_heads + desc.k_heads;
  HeadQkNormed out{x, {}};
  for (std::size_t t = 0; t < x.size() / (all * hd); ++t)
    for (Index h = 0; h < heads; ++h) {
      const Index at = (static_cast<Index>(t) * all + h) * hd;
      double mean = 0, squares = 0;
      if (desc.kind == NormKind::layernorm)
        for (Index i = 0; i < hd; ++i) mean += x[at + i] / static_cast<double>(hd);
      for (Index i = 0; i < hd; ++i) squares += (x[at + i] - mean) * (x[at + i] - mean);
      const Index row = desc.each_head ? h : h < desc.q_heads ? 0 : 1;
      out.inverse.push_back(1 / std::sqrt(squares / static_cast<double>(hd) + desc.eps));
      for (Index i = 0; i < hd; ++i)
        out.y[at + i] = (x[at + i] - mean) * out.inverse.back() * (desc.offset + weight[row * hd + i]);
    }
  if (!table.empty()) out.y = rope(all, hd, heads, half, positions, table, false, out.y, desc.pairs);
  return out;
}

// Returns the sums of x * y over the queries and over the keys of each token: [T, 2].
inline Numbers projection_sums(const ProjectionQkNorm& d, Index row, const Numbers& x, const Numbers& y) {
  Numbers sums;
  for (std::size_t t = 0; t < x.size() / row; ++t)
    for (const auto& [begin, size] : {std::pair{Index{0}, d.queries}, std::pair{d.queries, d.keys}}) {
      const Index at = static_cast<Index>(t) * row + begin;
      sums.push_back(std::inner_product(&x[at], &x[at] + size, &y[at], 0.0));
    }
  return sums;
}

// RMSNorm of all queries of a token together, and of all its keys together.
//   weight: [queries + keys]
//   others: [T, 2] sums of squares of the queries and keys on other ranks; may be empty
inline Numbers projection_qk_norm(const ProjectionQkNorm& d, Index row, const Numbers& weight, const Numbers& others,
                                  Numbers x) {
  const Numbers mine = projection_sums(d, row, x, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Index t = static_cast<Index>(i) / row, column = static_cast<Index>(i) % row;
    if (column >= d.queries + d.keys) continue;
    const bool key = column >= d.queries;
    const double squares = mine[2 * t + key] + (others.empty() ? 0.0 : others[2 * t + key]);
    x[i] *= (d.offset + weight[column]) /
            std::sqrt(squares / static_cast<double>(key ? d.all_keys : d.all_queries) + d.eps);
  }
  return x;
}

// ---- attention ----

// Heads [first, first + heads) of an array [sequences, positions, all, width].
struct HeadsOf {
  const double* data;
  Index positions, all, first, heads, width;
  const double* at(Index sequence, Index position, Index head) const {
    return data + ((sequence * positions + position) * all + first + head) * width;
  }
};

struct Attention {
  Numbers out, lse;    // [sequences, queries, heads, value width], [sequences, heads, queries]
  Numbers dq, dk, dv;  // gradients in the shapes of q, k, v, contiguous; empty without `dout`
  Numbers dbias, dsinks;
};

// Learned parameters of attention; each may be empty. bias: [heads, distances], for the distance
// from the query back to the key; sinks: [heads].
struct AttentionLearned {
  Numbers bias, sinks;
};

// Attention with the mask sees(sequence, query, key).
//   query_offsets: position among the keys of each sequence's first query; empty: 0
//   dout: [sequences, queries, heads, value width]; nullptr: the gradients are not computed
template <class Sees>
Attention attention(Index sequences, const HeadsOf& q, const HeadsOf& k, const HeadsOf& v, double scale, double cap,
                    const Sees& sees, const Numbers* dout = nullptr, const AttentionLearned& learned = {},
                    const std::vector<Index>& query_offsets = {}) {
  const Index queries = q.positions, keys = k.positions, group = k.heads > 0 ? q.heads / k.heads : 1;
  Attention r{
      Numbers(sequences * queries * q.heads * v.width), Numbers(sequences * q.heads * queries), {}, {}, {}, {}, {}};
  const Index distances = q.heads > 0 ? static_cast<Index>(learned.bias.size()) / q.heads : 0;
  if (dout) {
    r.dbias.resize(learned.bias.size());
    r.dsinks.resize(learned.sinks.size());
    r.dq.resize(sequences * queries * q.heads * q.width);
    r.dk.resize(sequences * keys * k.heads * k.width);
    r.dv.resize(sequences * keys * v.heads * v.width);
  }
  const auto product = [](const double* a, const double* b, Index n) { return std::inner_product(a, a + n, b, 0.0); };
  const auto add = [](double* to, double factor, const double* x, Index n) {
    for (Index l = 0; l < n; ++l) to[l] += factor * x[l];
  };
  Numbers score(keys), p(keys), dp(keys);
  for (Index b = 0; b < sequences; ++b)
    for (Index h = 0; h < q.heads; ++h)
      for (Index i = 0; i < queries; ++i) {
        const Index query = (b * queries + i) * q.heads + h, kv = h / group;
        const Index at = i + (query_offsets.empty() ? 0 : query_offsets[static_cast<std::size_t>(b)]);
        const auto key = [&](Index j) { return (b * keys + j) * k.heads + kv; };
        double largest = -std::numeric_limits<double>::infinity(), sum = 0, mean = 0;
        for (Index j = 0; j < keys; ++j) {
          if (!sees(b, i, j)) continue;
          const double s = scale * product(q.at(b, i, h), k.at(b, j, kv), q.width);
          score[j] = cap > 0 ? cap * std::tanh(s / cap) : s;
          if (distances > 0) score[j] += learned.bias[h * distances + at - j];
          largest = std::max(largest, score[j]);
        }
        const double sink = learned.sinks.empty() ? -std::numeric_limits<double>::infinity() : learned.sinks[h];
        largest = std::max(largest, sink);
        sum = std::exp(sink - largest);
        for (Index j = 0; j < keys; ++j) sum += p[j] = sees(b, i, j) ? std::exp(score[j] - largest) : 0;
        r.lse[(b * q.heads + h) * queries + i] = largest + std::log(sum);
        for (Index j = 0; j < keys; ++j) {
          if (p[j] == 0) continue;
          p[j] /= sum;
          add(&r.out[query * v.width], p[j], v.at(b, j, kv), v.width);
          if (dout) mean += p[j] * (dp[j] = product(&(*dout)[query * v.width], v.at(b, j, kv), v.width));
        }
        if (dout && !learned.sinks.empty()) r.dsinks[h] -= std::exp(sink - largest) / sum * mean;
        for (Index j = 0; dout && j < keys; ++j) {
          if (p[j] == 0) continue;
          if (distances > 0) r.dbias[h * distances + at - j] += p[j] * (dp[j] - mean);
          const double ds = p[j] * (dp[j] - mean) * scale * (cap > 0 ? 1 - (score[j] / cap) * (score[j] / cap) : 1);
          add(&r.dq[query * q.width], ds, k.at(b, j, kv), q.width);
          add(&r.dk[key(j) * k.width], ds, q.at(b, i, h), q.width);
          add(&r.dv[key(j) * v.width], p[j], &(*dout)[query * v.width], v.width);
        }
      }
  return r;
}

// Returns whether query p sees key j under a sparse pattern, in the notation of the papers.
inline bool sees(const SparsePattern& sparse, Index p, Index j) {
  if (!sparse) return true;
  if (p - j < sparse.local || j < sparse.global) return true;
  if (sparse.stride > 0 && (p - j) % sparse.stride == 0) return true;
  return sparse.block > 0 &&
         (p / sparse.block == j / sparse.block || j % sparse.block >= sparse.block - sparse.summary);
}

// Attention over one array of queries, keys and values.
//   qkv: [sequences, positions, heads + 2 kv_heads, width]
inline Attention attention(const AttentionDesc& desc, Index sequences, Index positions, Index heads, Index kv_heads,
                           Index width, const Numbers& qkv, const AttentionLearned& learned = {}) {
  const auto heads_from = [&](Index first, Index n) {
    return HeadsOf{qkv.data(), positions, heads + 2 * kv_heads, first, n, width};
  };
  return attention(
      sequences, heads_from(0, heads), heads_from(heads, kv_heads), heads_from(heads + kv_heads, kv_heads), desc.scale,
      desc.softcap,
      [&](Index, Index i, Index j) {
        const Index window = desc.mask.window;
        return (!desc.mask.causal || j <= i) && (window == 0 || j > i - window) && sees(desc.mask.sparse, i, j);
      },
      nullptr, learned);
}

// ---- routing ----

struct Softmax {
  Numbers p;
  double lse;
};

inline Softmax softmax(const double* z, Index n) {
  const double largest = *std::max_element(z, z + n);
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += std::exp(z[i] - largest);
  Softmax s{Numbers(n), largest + std::log(sum)};
  for (Index i = 0; i < n; ++i) s.p[i] = std::exp(z[i] - s.lse);
  return s;
}

inline Numbers scores(Score score, const double* z, Index e) {
  if (score == Score::softmax) return softmax(z, e).p;
  Numbers s(e);
  for (Index i = 0; i < e; ++i) s[i] = score == Score::sigmoid ? sigmoid(z[i]) : std::sqrt(std::log1p(std::exp(z[i])));
  return s;
}

// Returns the indices of the n largest values, by falling value. Ties: the lower index first.
inline std::vector<Index> largest(const Numbers& values, Index n) {
  std::vector<Index> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return values[a] > values[b]; });
  order.resize(n);
  return order;
}

// Returns the chosen experts: [T, k].
inline Numbers choose_experts(const RouteDesc& desc, Index t_all, Index e_all, const Numbers& logits,
                              const Numbers& bias, const Numbers& noise = {}) {
  Numbers experts;
  const Index size = e_all / desc.groups;
  for (Index t = 0; t < t_all; ++t) {
    const double* const z = &logits[t * e_all];
    Numbers selection = desc.select_by_logit ? Numbers(z, z + e_all) : scores(desc.score, z, e_all);
    for (Index e = 0; e < e_all; ++e)
      selection[e] += (bias.empty() ? 0.0 : bias[e]) + (noise.empty() ? 0.0 : noise[t * e_all + e]);
    Numbers of_group;
    for (Index g = 0; g < desc.groups; ++g) {
      const Numbers mine(selection.begin() + g * size, selection.begin() + (g + 1) * size);
      double sum = 0;
      const Index counted = desc.group_score == GroupScore::top2 ? 2 : 1;
      for (Index best : largest(mine, std::min(counted, size))) sum += mine[best];
      of_group.push_back(sum);
    }
    Numbers allowed(e_all, -std::numeric_limits<double>::infinity());
    for (Index g : largest(of_group, desc.topk_groups))
      for (Index e = g * size; e < (g + 1) * size; ++e) allowed[e] = selection[e];
    for (Index e : largest(allowed, desc.top_k)) experts.push_back(static_cast<double>(e));
  }
  return experts;
}

// Returns the weights of the chosen experts: [T, k].
inline Numbers route_weights(const RouteDesc& desc, Index t_all, Index e_all, const Numbers& logits,
                             const Numbers& experts) {
  Numbers weights;
  for (Index t = 0; t < t_all; ++t) {
    const Numbers s = scores(desc.score, &logits[t * e_all], e_all);
    double sum = 0;
    for (Index j = 0; j < desc.top_k; ++j) sum += s[whole(experts[t * desc.top_k + j])];
    for (Index j = 0; j < desc.top_k; ++j)
      weights.push_back(desc.scale * (s[whole(experts[t * desc.top_k + j])] / (desc.renormalize ? sum : 1.0)));
  }
  return weights;
}

struct RouteSums {
  Numbers counts, probability;  // [G, E]
  double z_squared;
};

inline RouteSums route_sums(const RouteDesc& desc, Index segments, Index t_all, Index e_all, const Numbers& logits,
                            const Numbers& experts) {
  RouteSums sums{Numbers(segments * e_all, 0.0), Numbers(segments * e_all, 0.0), 0.0};
  for (Index t = 0; t < t_all; ++t) {
    const Index g = t / (t_all / segments), k = static_cast<Index>(experts.size()) / t_all;
    const Softmax s = softmax(&logits[t * e_all], e_all);
    const Numbers of = desc.balance_by_score ? scores(desc.score, &logits[t * e_all], e_all) : s.p;
    const double all = std::accumulate(of.begin(), of.end(), 0.0);
    for (Index e = 0; e < e_all; ++e) sums.probability[g * e_all + e] += of[e] / all;
    for (Index j = 0; j < k; ++j) ++sums.counts[g * e_all + whole(experts[t * k + j])];
    sums.z_squared += s.lse * s.lse;
  }
  return sums;
}

// Returns the dispatch mask: [T, k].
inline Numbers apply_capacity(const CapacityDesc& desc, Index segments, Index t_all, Index k, const Numbers& experts,
                              const Numbers& weights) {
  Numbers dispatch_mask(t_all * k, 0.0);
  const Index size = t_all / segments;
  for (Index g = 0; g < segments; ++g) {
    std::vector<Index> queue;  // assignments of the segment, in order of acceptance
    if (desc.order == DropOrder::choice)
      for (Index j = 0; j < k; ++j)
        for (Index t = g * size; t < (g + 1) * size; ++t) queue.push_back(t * k + j);
    else
      for (Index a = g * size * k; a < (g + 1) * size * k; ++a) queue.push_back(a);
    if (desc.order == DropOrder::probability)
      std::stable_sort(queue.begin(), queue.end(), [&](Index a, Index b) { return weights[a] > weights[b]; });
    std::vector<Index> accepted;
    for (Index a : queue) {
      const std::size_t e = static_cast<std::size_t>(experts[a]);
      if (accepted.size() <= e) accepted.resize(e + 1, 0);
      if (desc.capacity == 0 || accepted[e] < desc.capacity) {
        dispatch_mask[a] = 1;
        ++accepted[e];
      }
    }
  }
  return dispatch_mask;
}

struct DispatchTables {
  // tokens and row_id_map: -1 if there is no copy
  Numbers physical_experts, tokens, row_id_map, counts, tokens_per_expert;
};

// Dispatch layout of Device::dispatch_layout. `e_all` is the number of experts in the partition.
//   logical_to_physical: [E] physical expert of each logical expert; empty: both are equal. It
//         replaces the table of `partition`, which is not read.
//   dispatch_mask: [T, k]. If it is empty, `experts` holds physical experts, and those in the range
//         of `partition` are dispatched.
inline DispatchTables dispatch_layout(const ExpertPartition& partition, const Numbers& logical_to_physical, Index k,
                                      Index e_all, const Numbers& experts, const Numbers& dispatch_mask) {
  const Index t_all = static_cast<Index>(experts.size()) / k, local = e_all / partition.ep;
  const Index most = std::min(k, partition.ep) * partition.etp;
  DispatchTables s{Numbers(experts.size(), -1.0), Numbers(t_all * most, -1.0), Numbers(t_all * most, -1.0),
                   Numbers(partition.ep * partition.etp + e_all), Numbers(e_all)};
  for (std::size_t a = 0; a < experts.size(); ++a) {
    const Index expert = whole(experts[a]) - partition.first_expert;
    if (dispatch_mask.empty() ? expert < 0 || expert >= e_all : dispatch_mask[a] == 0) continue;
    s.physical_experts[a] = logical_to_physical.empty() ? static_cast<double>(expert) : logical_to_physical[expert];
    ++s.tokens_per_expert[expert];
    ++s.counts[partition.ep * partition.etp + whole(s.physical_experts[a])];
  }
  // Returns the ep ranks that receive token t, in the order of its choices.
  const auto ep_ranks_of = [&](Index t) {
    std::vector<Index> ep_ranks;
    for (Index a = t * k; a < (t + 1) * k; ++a)
      if (s.physical_experts[a] >= 0 &&
          std::count(ep_ranks.begin(), ep_ranks.end(), whole(s.physical_experts[a]) / local) == 0)
        ep_ranks.push_back(whole(s.physical_experts[a]) / local);
    return ep_ranks;
  };
  Index copy = 0;
  for (Index rank = 0; rank < partition.ep * partition.etp; ++rank)
    for (Index t = 0; t < t_all; ++t) {
      const std::vector<Index> ep_ranks = ep_ranks_of(t);
      const auto at = std::find(ep_ranks.begin(), ep_ranks.end(), rank / partition.etp);
      if (at == ep_ranks.end()) continue;
      s.tokens[copy] = static_cast<double>(t);
      s.row_id_map[t * most + (at - ep_ranks.begin()) * partition.etp + rank % partition.etp] =
          static_cast<double>(copy++);
      ++s.counts[rank];
    }
  return s;
}

struct PermutationTables {
  // assignments and tokens: -1 if there is no row
  Numbers assignments, tokens, row_id_map, offsets;
};

// Permutation of Device::build_permutation, by a stable sort. The tables have n rows.
inline PermutationTables build_permutation(Index k, Index first_expert, Index local, Index n,
                                           const Numbers& physical_experts) {
  std::vector<Index> local_assignments;
  for (std::size_t a = 0; a < physical_experts.size(); ++a)
    if (physical_experts[a] >= static_cast<double>(first_expert) &&
        physical_experts[a] < static_cast<double>(first_expert + local))
      local_assignments.push_back(static_cast<Index>(a));
  std::stable_sort(local_assignments.begin(), local_assignments.end(),
                   [&](Index a, Index b) { return physical_experts[a] < physical_experts[b]; });
  PermutationTables s{Numbers(n, -1.0), Numbers(n, -1.0), Numbers(physical_experts.size(), -1.0), {}};
  for (std::size_t row = 0; row < local_assignments.size(); ++row) {
    s.assignments[row] = static_cast<double>(local_assignments[row]);
    s.tokens[row] = static_cast<double>(local_assignments[row] / k);
    s.row_id_map[local_assignments[row]] = static_cast<double>(row);
  }
  for (Index expert = first_expert; expert <= first_expert + local; ++expert)
    s.offsets.push_back(
        static_cast<double>(std::count_if(local_assignments.begin(), local_assignments.end(),
                                          [&](Index a) { return physical_experts[a] < static_cast<double>(expert); })));
  return s;
}

struct LoadBalancing {
  Numbers dprobability, sums;
};

// Sums count by count, as kernels/device.h defines them. all: the sizes P, L, G, E.
inline LoadBalancing load_balancing_loss(const LoadBalancingDesc& desc, Shape all, const Numbers& counts,
                                         const Numbers& scope_counts, const Numbers& probability,
                                         const Numbers& tokens_per_expert, const Numbers& z_squared) {
  const Index P = all[0], L = all[1], G = all[2], E = all[3], width = 3 * E + 2, last = P * G / desc.per_scope - 1;
  LoadBalancing b{Numbers(L * G * E), Numbers(L * width)};
  for (Index p = 0; p < P; ++p)
    for (Index of = 0; of < L; ++of)
      for (Index i = 0; i < G; ++i)
        for (Index l = 0; l < L; ++l)
          for (Index g = 0; g < G; ++g)
            for (Index e = 0; e < E; ++e)
              if ((desc.together || of == l) &&
                  (p * G + i) / desc.per_scope == std::min((desc.first + g) / desc.per_scope, last))
                b.dprobability[(l * G + g) * E + e] += desc.factor * scope_counts[((p * L + of) * G + i) * E + e];
  for (Index l = 0; l < L; ++l) {
    for (Index g = 0; g < G; ++g)
      for (Index e = 0; e < E; ++e) {
        const Index at = (l * G + g) * E + e;
        b.sums[l * width + e] += counts[at];
        b.sums[l * width + E + e] += counts[at];
        b.sums[l * width + 2 * E + e] += probability[at];
        b.sums[l * width + 3 * E] += b.dprobability[at] * probability[at];
      }
    for (Index e = 0; e < E; ++e) b.sums[l * width + E + e] -= tokens_per_expert[l * E + e];
    b.sums[l * width + 3 * E + 1] = desc.z_factor * z_squared[l];
  }
  return b;
}

// Returns NaN for each row with index -1: the operation leaves such a row as it is.
inline Numbers permute(Index d, const Numbers& x, const Numbers& index) {
  Numbers y;
  for (double i : index)
    for (Index c = 0; c < d; ++c) y.push_back(i < 0 ? std::nan("") : x[whole(i) * d + c]);
  return y;
}

// Returns y plus, for each token, the rows of x in its `row_id_map`.
inline Numbers unpermute(Index d, Index k, const Numbers& x, const Numbers& row_id_map, Numbers y) {
  for (std::size_t a = 0; a < row_id_map.size(); ++a)
    if (row_id_map[a] >= 0)
      for (Index i = 0; i < d; ++i) y[static_cast<Index>(a) / k * d + i] += x[whole(row_id_map[a]) * d + i];
  return y;
}

// ---- embedding and loss ----

inline Numbers embedding(Index vocab, Index d, Index vocab_begin, const Numbers& ids, const Numbers& table) {
  Numbers y(ids.size() * static_cast<std::size_t>(d), 0.0);
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const Index row = whole(ids[t]) - vocab_begin;
    if (row >= 0 && row < vocab)
      for (Index i = 0; i < d; ++i) y[static_cast<Index>(t) * d + i] = table[row * d + i];
  }
  return y;
}

inline double capped(double softcap, double x) {
  return softcap > 0 ? softcap * std::tanh(x / softcap) : x;
}

// Returns the three numbers of each token: [T, 3].
inline Numbers cross_entropy_partial(const CrossEntropyDesc& desc, Index v, const Numbers& logits,
                                     const Numbers& targets) {
  Numbers partial;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const double* const row = logits.data() + static_cast<Index>(t) * v;
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (Index i = 0; i < v; ++i) most = std::max(most, capped(desc.softcap, row[i]));
    for (Index i = 0; i < v; ++i) sum += std::exp(capped(desc.softcap, row[i]) - most);
    const Index target = whole(targets[t]) - desc.vocab_begin;
    partial.insert(partial.end(), {most, sum, target >= 0 && target < v ? capped(desc.softcap, row[target]) : 0.0});
  }
  return partial;
}

struct Loss {
  Numbers lse, loss;
};

// partials: [P, T, 3]
inline Loss cross_entropy_loss(Index shards, const Numbers& partials, const Numbers& targets) {
  const Index t_all = static_cast<Index>(targets.size());
  Loss out;
  for (Index t = 0; t < t_all; ++t) {
    double most = -std::numeric_limits<double>::infinity(), sum = 0, target = 0;
    for (Index p = 0; p < shards; ++p) most = std::max(most, partials[(p * t_all + t) * 3]);
    for (Index p = 0; p < shards; ++p) {
      sum += partials[(p * t_all + t) * 3 + 1] * std::exp(partials[(p * t_all + t) * 3] - most);
      target += partials[(p * t_all + t) * 3 + 2];
    }
    out.lse.push_back(most + std::log(sum));
    out.loss.push_back(targets[t] < 0 ? 0.0 : out.lse.back() - target);
  }
  return out;
}

// ---- optimizer ----

struct AdamW {
  float beta1, beta2, eps, weight_decay;
};

inline void adamw(const AdamW& desc, double coefficient, const Numbers& step_scalars, const Numbers& g, Numbers& w,
                  Numbers& m, Numbers& v) {
  const double beta1 = desc.beta1, beta2 = desc.beta2;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double gradient = coefficient * g[i];
    m[i] = beta1 * m[i] + (1 - beta1) * gradient;
    v[i] = beta2 * v[i] + (1 - beta2) * gradient * gradient;
    const double direction = m[i] / step_scalars[1] / (std::sqrt(v[i] / step_scalars[2]) + desc.eps);
    w[i] -= step_scalars[0] * (direction + desc.weight_decay * w[i]);
  }
}

inline void momentum_update(double momentum, double coefficient, const Numbers& g, Numbers& m) {
  for (std::size_t i = 0; i < m.size(); ++i) m[i] = momentum * m[i] + coefficient * g[i];
}

inline void apply_update(double lr, double weight_decay, const Numbers& update, Numbers& w) {
  for (std::size_t i = 0; i < w.size(); ++i) w[i] -= lr * (update[i] + weight_decay * w[i]);
}

// The direction of Muon for one matrix x: [rows, columns].
inline Numbers muon_direction(Index rows, Index columns, Numbers x) {
  const Index n = std::min(rows, columns);
  const bool tall = rows > columns;
  const double norm = std::sqrt(dot(x, x));
  for (double& value : x) value /= norm + 1e-7;
  for (int k = 0; k < 5; ++k) {
    const Numbers square = gemm({tall, !tall}, n, n, std::max(rows, columns), x, x);
    Numbers polynomial = gemm({}, n, n, n, square, square);
    for (std::size_t i = 0; i < square.size(); ++i) polynomial[i] = -4.7750 * square[i] + 2.0315 * polynomial[i];
    const Numbers product =
        tall ? gemm({}, rows, columns, n, x, polynomial) : gemm({}, rows, columns, n, polynomial, x);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + product[i];
  }
  const double scale = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
  for (double& value : x) value *= scale;
  return x;
}

}  // namespace sy::reference
