// Reference of the lightning indexer of sparse attention (kernels/ops/indexer.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/numerics/reference/attention.h"

namespace sy::reference {

// Operands of index scores. q: [T, heads, width], weights: [T, heads], k: [B, keys, width]. The
// first of the T queries has index `first` among the B * queries.
struct IndexOperands {
  const Numbers &q, &weights, &k;
  Index heads, width, queries, keys, first;
  double scale;
  Index count() const { return static_cast<Index>(weights.size()) / heads; }
  Index sequence(Index t) const { return (first + t) / queries; }
  Index query(Index t) const { return (first + t) % queries; }
  // Product of index head h of query t and key j, times the scale.
  double product(Index t, Index h, Index j) const {
    double sum = 0;
    for (Index i = 0; i < width; ++i) sum += q[(t * heads + h) * width + i] * k[(sequence(t) * keys + j) * width + i];
    return sum * scale;
  }
};

inline constexpr double hidden_score = -std::numeric_limits<double>::infinity();

// Scores [T, keys]; hidden_score if not sees(sequence, query, key).
template <class Sees>
Numbers index_scores(const IndexOperands& x, const Sees& sees) {
  Numbers scores(static_cast<std::size_t>(x.count() * x.keys), hidden_score);
  for (Index t = 0; t < x.count(); ++t)
    for (Index j = 0; j < x.keys; ++j) {
      if (!sees(x.sequence(t), x.query(t), j)) continue;
      double& score = scores[t * x.keys + j] = 0;
      for (Index h = 0; h < x.heads; ++h) score += x.weights[t * x.heads + h] * std::max(x.product(t, h, j), 0.0);
    }
  return scores;
}

// Positions [T, n] of the largest scores of each query, ascending; -1 after the last.
inline Numbers topk_keys(Index keys, Index n, const Numbers& scores) {
  const Index T = static_cast<Index>(scores.size()) / keys;
  Numbers selected(static_cast<std::size_t>(T * n), -1.0);
  for (Index t = 0; t < T; ++t) {
    Index count = 0;
    for (Index j = 0; j < keys; ++j) {
      // The number of keys that come before key j.
      Index rank = 0;
      const double score = scores[t * keys + j];
      for (Index i = 0; i < keys; ++i) {
        const double other = scores[t * keys + i];
        rank += other > score || (other == score && i > j);
      }
      if (score != hidden_score && rank < n) selected[t * n + count++] = static_cast<double>(j);
    }
  }
  return selected;
}

// Values [T, keys] of the selected keys [T, n]; `absent` after the last. Without a selection, all.
inline Numbers selected_values(Index keys, const Numbers& values, const Numbers& selected, double absent) {
  if (selected.empty()) return values;
  const std::size_t T = values.size() / static_cast<std::size_t>(keys), n = selected.size() / T;
  Numbers out(selected.size(), absent);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (selected[i] >= 0)
      out[i] = values[i / n * static_cast<std::size_t>(keys) + static_cast<std::size_t>(selected[i])];
  return out;
}

// Attention weights [B * queries, keys], summed over heads. lse: [B, heads, queries]
template <class Sees>
Numbers attention_key_sums(Index sequences, const HeadsOf& q, const HeadsOf& k, const Numbers& lse, double scale,
                           double cap, const Sees& sees) {
  Numbers sums(static_cast<std::size_t>(sequences * q.positions * k.positions));
  for (Index b = 0; b < sequences; ++b)
    for (Index i = 0; i < q.positions; ++i)
      for (Index j = 0; j < k.positions; ++j)
        for (Index h = 0; h < q.heads && sees(b, i, j); ++h) {
          const double* const key = k.at(b, j, h / (q.heads / k.heads));
          double s = scale * std::inner_product(key, key + k.width, q.at(b, i, h), 0.0);
          if (cap > 0) s = cap * std::tanh(s / cap);
          sums[(b * q.positions + i) * k.positions + j] += std::exp(s - lse[(b * q.heads + h) * q.positions + i]);
        }
  return sums;
}

struct IndexerLoss {
  double loss = 0;
  Numbers dscores;  // [T, n]
};

// KL divergence from the attention weights to the softmax of scores; both are [T, n].
inline IndexerLoss indexer_loss(Index n, const Numbers& scores, const Numbers& attention) {
  IndexerLoss out{0, Numbers(scores.size())};
  for (std::size_t row = 0; row < scores.size(); row += static_cast<std::size_t>(n)) {
    double sum = 0, total = 0;
    for (std::size_t i = row; i < row + static_cast<std::size_t>(n); ++i) {
      sum += std::exp(scores[i]);
      total += attention[i];
    }
    for (std::size_t i = row; total > 0 && i < row + static_cast<std::size_t>(n); ++i) {
      if (scores[i] == hidden_score) continue;
      const double p = attention[i] / total, softmax = std::exp(scores[i]) / sum;
      if (p > 0) out.loss += p * std::log(p / softmax);
      out.dscores[i] = softmax - p;
    }
  }
  return out;
}

struct IndexerGradients {
  Numbers dq, dweights, dk;
};

// Gradients through the scores [T, keys]; dscores is 0 for hidden keys.
inline IndexerGradients index_scores_backward(const IndexOperands& x, const Numbers& dscores) {
  IndexerGradients out{Numbers(x.q.size()), Numbers(x.weights.size()), Numbers(x.k.size())};
  for (Index t = 0; t < x.count(); ++t)
    for (Index j = 0; j < x.keys; ++j)
      for (Index h = 0; h < x.heads; ++h) {
        const double g = dscores[t * x.keys + j], z = x.product(t, h, j);
        if (g == 0 || z <= 0) continue;
        out.dweights[t * x.heads + h] += g * z;
        const double dz = g * x.weights[t * x.heads + h] * x.scale;
        for (Index i = 0; i < x.width; ++i) {
          const Index of_q = (t * x.heads + h) * x.width + i, of_k = (x.sequence(t) * x.keys + j) * x.width + i;
          out.dq[of_q] += dz * x.k[of_k];
          out.dk[of_k] += dz * x.q[of_q];
        }
      }
  return out;
}

}  // namespace sy::reference
