// Reference of routing, dispatch and permutation (numbers.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/ops/capacity.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/load_balancing.h"
#include "kernels/ops/route.h"
#include "src/numerics/reference/dense.h"

namespace sy::reference {

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

// Returns the chosen experts: [T, k]. token_mask: [T] or empty; the experts of padding are -1.
inline Numbers choose_experts(const RouteDesc& desc, Index t_all, Index e_all, const Numbers& logits,
                              const Numbers& bias, const Numbers& noise = {}, const Numbers& token_mask = {}) {
  Numbers experts;
  const Index size = e_all / desc.groups;
  for (Index t = 0; t < t_all; ++t) {
    if (!token_mask.empty() && token_mask[t] == 0) {
      experts.insert(experts.end(), desc.top_k, -1.0);
      continue;
    }
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
    if (experts[t * desc.top_k] < 0) {
      weights.insert(weights.end(), desc.top_k, 0.0);
      continue;
    }
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
    if (experts[t * k] < 0) continue;
    const Softmax s = softmax(&logits[t * e_all], e_all);
    const Numbers of = desc.balance_by_score ? scores(desc.score, &logits[t * e_all], e_all) : s.p;
    const double all = std::accumulate(of.begin(), of.end(), 0.0);
    for (Index e = 0; e < e_all; ++e) sums.probability[g * e_all + e] += of[e] / all;
    for (Index j = 0; j < k; ++j) ++sums.counts[g * e_all + whole(experts[t * k + j])];
    sums.z_squared += s.lse * s.lse;
  }
  return sums;
}

// Returns the dispatch mask: [T, k]; 0 for experts of -1.
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
      if (experts[a] < 0) continue;
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
                   Numbers(partition.ep * partition.etp * (1 + local)), Numbers(e_all)};
  for (std::size_t a = 0; a < experts.size(); ++a) {
    const Index expert = whole(experts[a]) - partition.first_expert;
    if (expert < 0 || (dispatch_mask.empty() ? expert >= e_all : dispatch_mask[a] == 0)) continue;
    s.physical_experts[a] = logical_to_physical.empty() ? static_cast<double>(expert) : logical_to_physical[expert];
    ++s.tokens_per_expert[expert];
    const Index physical = whole(s.physical_experts[a]);
    for (Index shard = 0; shard < partition.etp; ++shard)
      ++s.counts[(physical / local * partition.etp + shard) * (1 + local) + 1 + physical % local];
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
      ++s.counts[rank * (1 + local)];
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
    const Index token = local_assignments[row] / k;
    s.tokens[row] = static_cast<double>(token);
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

}  // namespace sy::reference
