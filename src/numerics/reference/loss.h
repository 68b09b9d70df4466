// Reference of the embedding, the loss and the updates of weights (numbers.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/optimizer.h"
#include "src/numerics/reference/numbers.h"

namespace sy::reference {

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

inline void adamw(const ops::AdamW& desc, double coefficient, const Numbers& step_scalars, const Numbers& g, Numbers& w,
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

// Returns Nesterov's momentum.
inline Numbers momentum_update(double momentum, double coefficient, const Numbers& g, Numbers& m) {
  Numbers nesterov(m.size());
  for (std::size_t i = 0; i < m.size(); ++i) {
    m[i] = momentum * m[i] + coefficient * g[i];
    nesterov[i] = momentum * m[i] + coefficient * g[i];
  }
  return nesterov;
}

inline void apply_update(double lr, double weight_decay, const Numbers& update, Numbers& w) {
  for (std::size_t i = 0; i < w.size(); ++i) w[i] -= lr * (update[i] + weight_decay * w[i]);
}

}  // namespace sy::reference
