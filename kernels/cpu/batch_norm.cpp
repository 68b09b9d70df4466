// Batch normalisation.
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/formulas/batch_norm.h"
#include "kernels/ops/batch_norm.h"

namespace sy::cpu {

// Sums are f64, so that the difference of mean(x^2) and mean(x)^2 is exact enough. An element costs
// 4 bytes and 3 FLOPs.
void execute(CpuDevice&, const ops::BatchNormSums& op) {
  const Index rows = op.x.dim(0), d = op.x.dim(1);
  const std::int32_t* const mask = op.mask ? op.mask.as<std::int32_t>() : nullptr;
  double* const sums = op.sums.as<double>();
  std::fill_n(sums, 2 * d + 1, 0.0);
  sum_over_rows(rows, 2 * d, sums, [&](Index begin, Index end, double* partial) {
    Floats inputs(op.x, d);
    for (Index t = begin; t < end; ++t) {
      if (mask && mask[t] == 0) continue;
      const float* const in = inputs.at(t * d);
#pragma omp simd
      for (Index i = 0; i < d; ++i) {
        const double x = static_cast<double>(in[i]);
        partial[i] += x;
        partial[d + i] += x * x;
      }
    }
  });
  Index count = mask ? 0 : rows;
  for (Index t = 0; mask && t < rows; ++t) count += mask[t] != 0;
  sums[2 * d] = static_cast<double>(count);
}

// A column costs 44 bytes and 13 FLOPs.
void execute(CpuDevice&, const ops::BatchNormMoments& op) {
  const Index d = op.moments.dim(0) / 2;
  float* const moments = op.moments.f32();
  float* const averages = op.averages ? op.averages.f32() : nullptr;
  const double* const sums = op.sums ? op.sums.as<double>() : nullptr;
  const double count = sums ? sums[2 * d] : 0, eps = static_cast<double>(op.eps),
               momentum = static_cast<double>(op.momentum);
  const double factor = count > 0 ? 1 / count : 0;
  for (Index i = 0; i < d; ++i) {
    const formulas::ColumnMoments m =
        sums ? formulas::column_moments(sums[i], sums[d + i], factor)
             : formulas::ColumnMoments{static_cast<double>(averages[i]), static_cast<double>(averages[d + i])};
    moments[i] = static_cast<float>(m.mean);
    moments[d + i] = static_cast<float>(1 / std::sqrt(m.variance + eps));
    if (!averages || count < 2) continue;
    averages[i] = formulas::running_average(averages[i], m.mean, momentum);
    averages[d + i] = formulas::running_average(averages[d + i], formulas::unbiased_variance(m, count), momentum);
  }
  moments[2 * d] = static_cast<float>(factor);
}

// An element costs 8 bytes and 3 FLOPs, and 1 more with a bias.
void execute(CpuDevice&, const ops::BatchNormForward& op) {
  const Index d = op.x.dim(1);
  Floats weights(op.weight, d), biases(op.bias, d);
  const float* const all_weights = weights.at(0);
  const float* const all_biases = biases.at(0);
  for_chunks(op.x.dim(0), rows_per_chunk(d), [&](Index begin, Index end) {
    const float* const w = all_weights;
    const float* const b = all_biases;
    const float* const mean = op.moments.f32();
    const float* const inverse = mean + d;
    Floats inputs(op.x, d);
    Results outputs(op.y, d);
    for (Index t = begin; t < end; ++t) {
      const float* const in = inputs.at(t * d);
      float* const out = outputs.begin(t * d);
#pragma omp simd
      for (Index i = 0; i < d; ++i) out[i] = (in[i] - mean[i]) * inverse[i] * w[i];
      if (b)
#pragma omp simd
        for (Index i = 0; i < d; ++i) out[i] += b[i];
    }
  });
}

// An element costs 8 bytes and 5 FLOPs.
void execute(CpuDevice&, const ops::BatchNormGradientSums& op) {
  const Index d = op.x.dim(1);
  double* const sums = op.sums.as<double>();
  std::fill_n(sums, 2 * d, 0.0);
  sum_over_rows(op.x.dim(0), 2 * d, sums, [&](Index begin, Index end, double* partial) {
    const float* const mean = op.moments.f32();
    const float* const inverse = mean + d;
    Floats inputs(op.x, d), gradients(op.dy, d);
    for (Index t = begin; t < end; ++t) {
      const float* const in = inputs.at(t * d);
      const float* const g = gradients.at(t * d);
#pragma omp simd
      for (Index i = 0; i < d; ++i) {
        partial[i] += static_cast<double>(g[i]);
        partial[d + i] += static_cast<double>(g[i] * ((in[i] - mean[i]) * inverse[i]));
      }
    }
  });
  float* const dweight = op.dweight.f32();
  for (Index i = 0; i < d; ++i) dweight[i] += static_cast<float>(sums[d + i]);
  if (!op.dbias) return;
  float* const dbias = op.dbias.f32();
  for (Index i = 0; i < d; ++i) dbias[i] += static_cast<float>(sums[i]);
}

// An element costs 16 bytes and 7 FLOPs.
void execute(CpuDevice&, const ops::BatchNormBackward& op) {
  const Index d = op.x.dim(1);
  const std::int32_t* const mask = op.mask ? op.mask.as<std::int32_t>() : nullptr;
  const double* const sums = op.sums.as<double>();
  const float* const moments = op.moments.f32();
  const double factor = static_cast<double>(moments[2 * d]);
  Floats weights(op.weight, d);
  const float* const w = weights.at(0);
  // By column: the factor of dx, and the means of dy and of dy * n.
  const auto columns = scratch<float>(3 * d);
  for (Index i = 0; i < d; ++i) {
    columns[i] = w[i] * moments[d + i];
    columns[d + i] = static_cast<float>(sums[i] * factor);
    columns[2 * d + i] = static_cast<float>(sums[d + i] * factor);
  }
  for_chunks(op.x.dim(0), rows_per_chunk(d), [&](Index begin, Index end) {
    const float* const mean = moments;
    const float* const inverse = mean + d;
    const float* const scale = columns.get();
    const float* const mean_dy = scale + d;
    const float* const mean_dy_n = mean_dy + d;
    Floats inputs(op.x, d), gradients(op.dy, d);
    Results outputs(op.dx, d);
    for (Index t = begin; t < end; ++t) {
      const float* const in = inputs.at(t * d);
      const float* const g = gradients.at(t * d);
      float* const out = outputs.update(t * d);
      if (mask && mask[t] == 0) {
#pragma omp simd
        for (Index i = 0; i < d; ++i) out[i] += scale[i] * g[i];
        continue;
      }
#pragma omp simd
      for (Index i = 0; i < d; ++i)
        out[i] += scale[i] * (g[i] - mean_dy[i] - (in[i] - mean[i]) * inverse[i] * mean_dy_n[i]);
    }
  });
}

}  // namespace sy::cpu
