// RMSNorm, LayerNorm and biases.
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/bias.h"
#include "kernels/ops/norm.h"

namespace sy::cpu {

// An element costs 8 bytes and 7 FLOPs, 8 for LayerNorm, and 1 more with a bias.
void execute(CpuDevice&, const ops::NormForward& op) {
  const Index d = op.x.dim(1);
  const auto width = static_cast<float>(d);
  Floats weights(op.weight, d), biases(op.bias, d);
  const float* const all_weights = weights.at(0);
  const float* const all_biases = biases.at(0);
  for_chunks(op.x.dim(0), rows_per_chunk(d), [&](Index begin, Index end) {
    const float offset = op.desc.offset;
    const float* const w = all_weights;
    const float* const b = all_biases;
    Floats inputs(op.x, d);
    Results outputs(op.y, d);
    for (Index t = begin; t < end; ++t) {
      const float* const in = inputs.at(t * d);
      float* const out = outputs.begin(t * d);
      const float mean = op.desc.kind == NormKind::layernorm ? sum_of(d, [=](Index i) { return in[i]; }) / width : 0;
      const float squares = sum_of(d, [=](Index i) { return (in[i] - mean) * (in[i] - mean); });
      const float inverse = 1 / std::sqrt(squares / width + op.desc.eps);
#pragma omp simd
      for (Index i = 0; i < d; ++i) out[i] = (in[i] - mean) * inverse * (offset + w[i]);
      if (b)
#pragma omp simd
        for (Index i = 0; i < d; ++i) out[i] += b[i];
      op.moments.f32()[2 * t] = mean;
      op.moments.f32()[2 * t + 1] = inverse;
    }
  });
}

// With n = (x - mean) * inverse and dn = dy * (offset + weight):
//   dx = inverse * (dn - mean(dn) - n * mean(dn * n)),   without mean(dn) for RMSNorm,
//   dweight = sum_t dy * n,   dbias = sum_t dy.
// An element costs 16 bytes and 17 FLOPs, 20 for LayerNorm, and 1 more with a bias.
void execute(CpuDevice&, const ops::NormBackward& op) {
  const Index t_all = op.x.dim(0), d = op.x.dim(1);
  const bool centred = op.desc.kind == NormKind::layernorm;
  // dweight and dbias are adjacent, so that one pass over the rows sums both.
  const Index width = op.dbias ? 2 * d : d;
  const auto sums = scratch<float>(width);
  std::fill_n(sums.get(), width, 0.0f);
  Floats weights(op.weight, d);
  const float* const all_weights = weights.at(0);
  sum_over_rows(t_all, width, sums.get(), [&](Index begin, Index end, float* partial) {
    const float* const w = all_weights;
    const float offset = op.desc.offset;
    Floats inputs(op.x, d), gradients(op.dy, d);
    Results outputs(op.dx, d);
    for (Index t = begin; t < end; ++t) {
      const float* const in = inputs.at(t * d);
      const float* const g = gradients.at(t * d);
      float* const out = outputs.update(t * d);
      const float mean = op.moments.f32()[2 * t], inverse = op.moments.f32()[2 * t + 1];
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
      if (op.dbias)
#pragma omp simd
        for (Index i = 0; i < d; ++i) partial[d + i] += g[i];
    }
  });
  float* const dweight = op.dweight.f32();
  for (Index i = 0; i < d; ++i) dweight[i] += sums[i];
  if (!op.dbias) return;
  float* const dbias = op.dbias.f32();
  for (Index i = 0; i < d; ++i) dbias[i] += sums[d + i];
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
void execute(CpuDevice&, const ops::GroupedBiasForward& op) {
  const Index n = op.bias.dim(1), width = op.y.dim(1);
  for_chunks(op.y.dim(0), rows_per_chunk(n), [&](Index begin, Index end) {
    Floats biases(op.bias, n);
    Results outputs(op.y, n);
    for_rows(op.groups, op.bias.dim(0), begin, end, [&](Index r, Index e) {
      const float* const b = biases.at(e * n);
      float* const out = outputs.update(r * width + op.first);
      const float scale = op.row_scale ? op.row_scale.f32()[r] : 1.0f;
#pragma omp simd
      for (Index i = 0; i < n; ++i) out[i] += scale * b[i];
    });
  });
}

// An element costs 4 bytes and 4 FLOPs.
void execute(CpuDevice&, const ops::GroupedBiasBackward& op) {
  const Index n = op.bias.dim(1), width = op.dy.dim(1);
  const std::int32_t* const offsets = op.groups.host;
  for (Index e = 0; e < op.bias.dim(0); ++e) {
    const Index start = offsets[e];
    sum_over_rows(offsets[e + 1] - start, n, op.dbias.f32() + e * n, [&](Index begin, Index end, float* partial) {
      Floats biases(op.bias, n), gradients(op.dy, n);
      const float* const b = biases.at(e * n);
      for (Index r = start + begin; r < start + end; ++r) {
        const float* const g = gradients.at(r * width + op.first);
        const float scale = op.row_scale ? op.row_scale.f32()[r] : 1.0f;
        float dscale = 0;
#pragma omp simd reduction(+ : dscale)
        for (Index i = 0; i < n; ++i) {
          partial[i] += scale * g[i];
          dscale += g[i] * b[i];
        }
        if (op.drow_scale) op.drow_scale.f32()[r] += dscale;
      }
    });
  }
}

// An element costs 8 bytes and 1 FLOP.
void execute(CpuDevice&, const ops::BiasForward& op) {
  const Index n = op.y.dim(1);
  for_chunks(op.y.dim(0), rows_per_chunk(n), [&](Index begin, Index end) {
    Floats biases(op.bias, n);
    Results outputs(op.y, n);
    const float* const b = biases.at(0);
    for (Index t = begin; t < end; ++t) {
      float* const out = outputs.update(t * n);
#pragma omp simd
      for (Index i = 0; i < n; ++i) out[i] += b[i];
    }
  });
}

// An element costs 4 bytes and 1 FLOP.
void execute(CpuDevice&, const ops::BiasBackward& op) {
  const Index n = op.dy.dim(1);
  sum_over_rows(op.dy.dim(0), n, op.dbias.f32(), [&](Index begin, Index end, float* partial) {
    Floats gradients(op.dy, n);
    for (Index t = begin; t < end; ++t) {
      const float* const g = gradients.at(t * n);
#pragma omp simd
      for (Index i = 0; i < n; ++i) partial[i] += g[i];
    }
  });
}

}  // namespace sy::cpu
