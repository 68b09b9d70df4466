// RMSNorm, LayerNorm and biases.
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace sy::cpu {

// An element costs 8 bytes and 7 FLOPs, 8 for LayerNorm, and 1 more with a bias.
void CpuBackend::do_norm_forward(const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y,
                                 View moments) {
  const Index d = x.dim(1);
  const auto width = static_cast<float>(d);
  Floats weights(weight, d), biases(bias, d);
  const float* const all_weights = weights.at(0);
  const float* const all_biases = biases.at(0);
  for_chunks(x.dim(0), rows_per_chunk(d), [&](Index begin, Index end) {
    const float offset = desc.offset;
    const float* const w = all_weights;
    const float* const b = all_biases;
    Floats inputs(x, d);
    Results outputs(y, d);
    for (Index t = begin; t < end; ++t) {
      const float* const in = inputs.at(t * d);
      float* const out = outputs.begin(t * d);
      const float mean = desc.kind == NormKind::layernorm ? sum_of(d, [=](Index i) { return in[i]; }) / width : 0;
      const float squares = sum_of(d, [=](Index i) { return (in[i] - mean) * (in[i] - mean); });
      const float inverse = 1 / std::sqrt(squares / width + desc.eps);
#pragma omp simd
      for (Index i = 0; i < d; ++i) out[i] = (in[i] - mean) * inverse * (offset + w[i]);
      if (b)
#pragma omp simd
        for (Index i = 0; i < d; ++i) out[i] += b[i];
      moments.f32()[2 * t] = mean;
      moments.f32()[2 * t + 1] = inverse;
    }
  });
}

// With n = (x - mean) * inverse and dn = dy * (offset + weight):
//   dx = inverse * (dn - mean(dn) - n * mean(dn * n)),   without mean(dn) for RMSNorm,
//   dweight = sum_t dy * n,   dbias = sum_t dy.
// An element costs 16 bytes and 17 FLOPs, 20 for LayerNorm, and 1 more with a bias.
void CpuBackend::do_norm_backward(const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView moments,
                                  View dx, View dweight, View dbias) {
  const Index t_all = x.dim(0), d = x.dim(1);
  const bool centred = desc.kind == NormKind::layernorm;
  // dweight and dbias are adjacent, so that one pass over the rows sums both.
  const Index width = dbias ? 2 * d : d;
  const auto sums = scratch<float>(width);
  std::fill_n(sums.get(), width, 0.0f);
  Floats weights(weight, d);
  const float* const all_weights = weights.at(0);
  sum_over_rows(t_all, width, sums.get(), [&](Index begin, Index end, float* partial) {
    const float* const w = all_weights;
    const float offset = desc.offset;
    Floats inputs(x, d), gradients(dy, d);
    Results outputs(dx, d);
    for (Index t = begin; t < end; ++t) {
      const float* const in = inputs.at(t * d);
      const float* const g = gradients.at(t * d);
      float* const out = outputs.update(t * d);
      const float mean = moments.f32()[2 * t], inverse = moments.f32()[2 * t + 1];
      const float mean_dn =
          centred ? sum_of(d, [=](Index i) { return g[i] * (offset + w[i]); }) / static_cast<float>(d) : 0;
      const float mean_dn_n = sum_of(d, [=](Index i) { return g[i] * (offset + w[i]) * ((in[i] - mean) * inverse); }) /
                              static_cast<float>(d);
#pragma omp simd
      for (Index i = 0; i < d; ++i) {
        const float n = (in[i] - mean) * inverse;
        out[i] += inverse * (g[i] * (offset + w[i]) - mean_dn - n * mean_dn_n);
        partial[i] += g[i] * n;
      }
      if (dbias)
#pragma omp simd
        for (Index i = 0; i < d; ++i) partial[d + i] += g[i];
    }
  });
  for (Index i = 0; i < d; ++i) dweight.f32()[i] += sums[i];
  if (dbias)
    for (Index i = 0; i < d; ++i) dbias.f32()[i] += sums[d + i];
}

namespace {

// Calls body(row, expert) for the rows [begin, end) of a grouped operation.
template <class Body>
void for_rows(const GroupOffsets& groups, Index experts, Index begin, Index end, const Body& body) {
  Index e = std::upper_bound(groups.host, groups.host + experts + 1, begin) - groups.host - 1;
  for (Index r = begin; r < end; ++r) {
    while (r >= groups.host[e + 1]) ++e;
    body(r, e);
  }
}

}  // namespace

// An element costs 8 bytes and 2 FLOPs.
void CpuBackend::do_grouped_bias_forward(ConstView bias, ConstView row_scale, const GroupOffsets& groups, Index first,
                                         View y) {
  const Index n = bias.dim(1), width = y.dim(1);
  for_chunks(y.dim(0), rows_per_chunk(n), [&](Index begin, Index end) {
    Floats biases(bias, n);
    Results outputs(y, n);
    for_rows(groups, bias.dim(0), begin, end, [&](Index r, Index e) {
      const float* const b = biases.at(e * n);
      float* const out = outputs.update(r * width + first);
      const float scale = row_scale ? row_scale.f32()[r] : 1.0f;
#pragma omp simd
      for (Index i = 0; i < n; ++i) out[i] += scale * b[i];
    });
  });
}

// An element costs 4 bytes and 4 FLOPs.
void CpuBackend::do_grouped_bias_backward(ConstView dy, ConstView bias, ConstView row_scale, const GroupOffsets& groups,
                                          Index first, View dbias, View drow_scale) {
  const Index n = bias.dim(1), width = dy.dim(1);
  for (Index e = 0; e < bias.dim(0); ++e) {
    const Index start = groups.host[e];
    sum_over_rows(groups.host[e + 1] - start, n, dbias.f32() + e * n, [&](Index begin, Index end, float* partial) {
      Floats biases(bias, n), gradients(dy, n);
      const float* const b = biases.at(e * n);
      for (Index r = start + begin; r < start + end; ++r) {
        const float* const g = gradients.at(r * width + first);
        const float scale = row_scale ? row_scale.f32()[r] : 1.0f;
        float dscale = 0;
#pragma omp simd reduction(+ : dscale)
        for (Index i = 0; i < n; ++i) {
          partial[i] += scale * g[i];
          dscale += g[i] * b[i];
        }
        if (drow_scale) drow_scale.f32()[r] += dscale;
      }
    });
  }
}

// An element costs 8 bytes and 1 FLOP.
void CpuBackend::do_bias_forward(ConstView bias, View y) {
  const Index n = y.dim(1);
  for_chunks(y.dim(0), rows_per_chunk(n), [&](Index begin, Index end) {
    Floats biases(bias, n);
    Results outputs(y, n);
    const float* const b = biases.at(0);
    for (Index t = begin; t < end; ++t) {
      float* const out = outputs.update(t * n);
#pragma omp simd
      for (Index i = 0; i < n; ++i) out[i] += b[i];
    }
  });
}

// An element costs 4 bytes and 1 FLOP.
void CpuBackend::do_bias_backward(ConstView dy, View dbias) {
  const Index n = dy.dim(1);
  sum_over_rows(dy.dim(0), n, dbias.f32(), [&](Index begin, Index end, float* partial) {
    Floats gradients(dy, n);
    for (Index t = begin; t < end; ++t) {
      const float* const g = gradients.at(t * n);
#pragma omp simd
      for (Index i = 0; i < n; ++i) partial[i] += g[i];
    }
  });
}

}  // namespace sy::cpu
