// Reference of GEMMs, biases, norms, activations, rotary positions and QK-norms (numbers.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "kernels/attention.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/qk_norm.h"
#include "kernels/types.h"
#include "src/numerics/reference/numbers.h"

namespace sy::reference {

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

// Mean of the n numbers from x on, which rmsnorm takes to be 0, and 1 / root of their variance.
struct RowMoments {
  double mean = 0, inverse = 0;
};
inline RowMoments row_moments(NormKind kind, double eps, const double* x, Index n) {
  double mean = 0, squares = 0;
  if (kind == NormKind::layernorm)
    for (Index i = 0; i < n; ++i) mean += x[i] / static_cast<double>(n);
  for (Index i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<double>(n) + eps)};
}

struct Norm {
  Numbers y, moments;
};

inline Norm norm(const NormDesc& desc, Index t, Index d, const Numbers& x, const Numbers& weight, const Numbers& bias) {
  Norm out{Numbers(t * d), Numbers(t * 2)};
  for (Index r = 0; r < t; ++r) {
    const auto [mean, inverse] = row_moments(desc.kind, static_cast<double>(desc.eps), x.data() + r * d, d);
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
    case Activation::xielu:  // see xielu()
      break;
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

// xIELU of x with parameters p and n (arXiv 2411.13010, equation 9, with beta = 1/2).
inline double xielu(double x, double p, double n) {
  const double a = std::log1p(std::exp(p)), b = 0.5 + std::log1p(std::exp(n));
  return 0.5 * x + (x > 0 ? a * x * x : b * (std::expm1(x) - x));
}

inline Numbers xielu(const Numbers& h, const Numbers& parameters) {
  Numbers y(h);
  for (double& x : y) x = xielu(x, parameters[0], parameters[1]);
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
      const auto [mean, inverse] = row_moments(desc.kind, static_cast<double>(desc.eps), x.data() + at, hd);
      const Index row = desc.each_head ? h : h < desc.q_heads ? 0 : 1;
      out.inverse.push_back(inverse);
      for (Index i = 0; i < hd; ++i)
        out.y[at + i] = (x[at + i] - mean) * inverse * (desc.offset + weight[row * hd + i]);
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

}  // namespace sy::reference
