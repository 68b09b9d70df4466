// Reference of attention and its gradients (numbers.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "src/numerics/reference/numbers.h"

namespace sy::reference {

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
  Numbers largest;     // [sequences, heads, queries] largest score, a sink included
  Numbers dq, dk, dv;  // gradients in the shapes of q, k, v, contiguous; empty without `dout`
  Numbers dbias, dsinks;
};

// Learned parameters of attention; each may be empty. bias: [heads, distances], for the distance
// from the query back to the key, from -later on; sinks: [heads].
struct AttentionLearned {
  Numbers bias, sinks;
  Index later = 0;
};

// Attention with the mask sees(sequence, query, key).
//   query_offsets: position among the keys of each sequence's first query; empty: 0
//   dout: [sequences, queries, heads, value width]; nullptr: the gradients are not computed
template <class Sees>
Attention attention(Index sequences, const HeadsOf& q, const HeadsOf& k, const HeadsOf& v, double scale, double cap,
                    const Sees& sees, const Numbers* dout = nullptr, const AttentionLearned& learned = {},
                    const std::vector<Index>& query_offsets = {}) {
  const Index queries = q.positions, keys = k.positions, group = k.heads > 0 ? q.heads / k.heads : 1;
  Attention r;
  r.out.resize(sequences * queries * q.heads * v.width);
  r.lse.resize(sequences * q.heads * queries);
  r.largest.resize(r.lse.size());
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
          if (distances > 0) score[j] += learned.bias[h * distances + learned.later + at - j];
          largest = std::max(largest, score[j]);
        }
        const double sink = learned.sinks.empty() ? -std::numeric_limits<double>::infinity() : learned.sinks[h];
        largest = std::max(largest, sink);
        sum = std::exp(sink - largest);
        for (Index j = 0; j < keys; ++j) sum += p[j] = sees(b, i, j) ? std::exp(score[j] - largest) : 0;
        r.lse[(b * q.heads + h) * queries + i] = largest + std::log(sum);
        r.largest[(b * q.heads + h) * queries + i] = largest;
        for (Index j = 0; j < keys; ++j) {
          if (p[j] == 0) continue;
          p[j] /= sum;
          add(&r.out[query * v.width], p[j], v.at(b, j, kv), v.width);
          if (dout) mean += p[j] * (dp[j] = product(&(*dout)[query * v.width], v.at(b, j, kv), v.width));
        }
        if (dout && !learned.sinks.empty()) r.dsinks[h] -= std::exp(sink - largest) / sum * mean;
        for (Index j = 0; dout && j < keys; ++j) {
          if (p[j] == 0) continue;
          if (distances > 0) r.dbias[h * distances + learned.later + at - j] += p[j] * (dp[j] - mean);
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
  if (std::abs(p - j) < sparse.local || j < sparse.global || p < sparse.global) return true;
  if (sparse.stride > 0 && (p - j) % sparse.stride == 0) return true;
  return sparse.block > 0 &&
         ((j <= p && p / sparse.block - j / sparse.block <= sparse.before) || p / sparse.block == j / sparse.block ||
          j % sparse.block >= sparse.block - sparse.summary);
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
        const bool in_window = window == 0 || (j > i - window && j < i + window);
        return (!desc.mask.causal || j <= i) && in_window && sees(desc.mask.sparse, i, j);
      },
      nullptr, learned);
}

}  // namespace sy::reference
