// Reference of attention with locality-sensitive hashing (kernels/ops/lsh.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/numerics/reference/numbers.h"

namespace sy::reference {

// Sizes of attention with hashing. x: [B, S, H, hd]; values have the width vd.
struct LshShape {
  Index B, S, H, hd, vd;
  Index chunk, before, after;
  bool causal;
  double scale, epsilon = 0;
};

// Sorted positions [B, H, rounds, P]; -1 after the last. rotations: [H, hd, rounds, half];
// lengths: [B], or empty
inline Numbers lsh_order(const LshShape& s, Index rounds, const std::vector<Index>& factors, Index P, const Numbers& x,
                         const Numbers& rotations, const Numbers& lengths = {}) {
  Index half = 0;
  for (const Index factor : factors) half += factor / 2;
  Numbers order;
  for (Index b = 0; b < s.B; ++b)
    for (Index h = 0; h < s.H; ++h)
      for (Index r = 0; r < rounds; ++r) {
        const Index length = lengths.empty() ? s.S : whole(lengths[b]);
        std::vector<std::pair<Index, Index>> sorted;  // bucket, position
        for (Index i = 0; i < length; ++i) {
          Index bucket = 0, unit = 1, column = 0;
          for (const Index factor : factors) {
            double largest = -std::numeric_limits<double>::infinity();
            Index digit = 0;
            for (Index j = 0; j < factor; ++j) {
              double sum = 0;
              for (Index c = 0; c < s.hd; ++c)
                sum += x[((b * s.S + i) * s.H + h) * s.hd + c] *
                       rotations[((h * s.hd + c) * rounds + r) * half + column + j % (factor / 2)];
              if (j >= factor / 2) sum = -sum;
              if (sum > largest) largest = sum, digit = j;
            }
            bucket += unit * digit;
            unit *= factor;
            column += factor / 2;
          }
          sorted.emplace_back(bucket, i);
        }
        std::sort(sorted.begin(), sorted.end());
        for (const auto& [bucket, position] : sorted) order.push_back(static_cast<double>(position));
        order.insert(order.end(), static_cast<std::size_t>(P - length), -1.0);
      }
  return order;
}

struct LshAttention {
  Numbers out, lse;  // [B, S, H, vd], [B, H, S]
};

// Each pair of a query and a key counts as often as the query's chunks see the key.
// order: [B, H, rounds, P], P a multiple of the chunk's length
inline LshAttention lsh_attention(const LshShape& s, const Numbers& x, const Numbers& v, const Numbers& order) {
  LshAttention result{Numbers(v.size()), Numbers(static_cast<std::size_t>(s.B * s.H * s.S))};
  if (s.B == 0) return result;
  const Index entries = static_cast<Index>(order.size()) / (s.B * s.H), chunks = entries / s.chunk;
  for (Index b = 0; b < s.B; ++b)
    for (Index h = 0; h < s.H; ++h) {
      const double* const tokens = order.data() + (b * s.H + h) * entries;
      Numbers counts(static_cast<std::size_t>(s.S * s.S));  // [query, key]
      for (Index at = 0; at < entries; ++at)
        for (Index step = -s.before; step <= s.after; ++step)
          for (Index i = 0; i < s.chunk; ++i) {
            const Index chunk = ((at / s.chunk + step) % chunks + chunks) % chunks;
            const double key = tokens[chunk * s.chunk + i];
            if (tokens[at] >= 0 && key >= 0) counts[whole(tokens[at]) * s.S + whole(key)] += 1;
          }
      const auto of = [&](const Numbers& values, Index width, Index i) {
        return values.data() + ((b * s.S + i) * s.H + h) * width;
      };
      for (Index i = 0; i < s.S; ++i) {
        double sum = 0;
        double* const out = result.out.data() + (of(v, s.vd, i) - v.data());
        for (Index j = 0; j < s.S; ++j) {
          if (i == j || (s.causal && j > i) || counts[i * s.S + j] == 0) continue;
          const double *const query = of(x, s.hd, i), *const key = of(x, s.hd, j);
          const double length = std::sqrt(std::inner_product(key, key + s.hd, key, s.epsilon));
          const double score = s.scale * std::inner_product(key, key + s.hd, query, 0.0) / length;
          const double weight = counts[i * s.S + j] * std::exp(score);
          sum += weight;
          for (Index c = 0; c < s.vd; ++c) out[c] += weight * of(v, s.vd, j)[c];
        }
        for (Index c = 0; c < s.vd; ++c) out[c] = sum > 0 ? out[c] / sum : of(v, s.vd, i)[c];
        result.lse[(b * s.H + h) * s.S + i] = sum > 0 ? std::log(sum) : 0;
      }
    }
  return result;
}

// The order of positions, as that of one round. P: a multiple of the chunk's length
inline Numbers lsh_positions(const LshShape& s, const Numbers& lengths = {}) {
  const Index P = (s.S + s.chunk - 1) / s.chunk * s.chunk;
  Numbers order;
  for (Index b = 0; b < s.B; ++b)
    for (Index h = 0; h < s.H; ++h)
      for (Index i = 0; i < P; ++i)
        order.push_back(i < (lengths.empty() ? s.S : whole(lengths[b])) ? static_cast<double>(i) : -1.0);
  return order;
}

}  // namespace sy::reference
