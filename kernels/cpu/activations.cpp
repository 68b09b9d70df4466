// Activations of feed-forward layers, gated or not.
//
// FLOPs of one activation:    relu  hardtanh  relu2  sigmoid  silu  gelu_tanh  gelu
//   value                        0         0      1       23    25         29    39
//   slope, in addition           0         0      1        2     5          8     3
#include "kernels/cpu/activations.h"

#include <array>
#include <numeric>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/formulas/activation.h"
#include "kernels/ops/activation.h"

namespace sy::cpu {

namespace {

using formulas::Point;

struct VectorMath {
  static float sigmoid(float x) { return sigmoid_(x); }
  // Phi(x) = 1/2 (1 + erf(x / sqrt 2)). The erf is formula 7.1.26 of Abramowitz and Stegun. Its
  // absolute error is below 1.5e-7. It shares its exponential with the density.
  static formulas::Normal normal(float x) {
    const float z = (x < 0 ? -x : x) * 0.70710678f;
    const float t = 1 / (1 + 0.3275911f * z);
    const float e = exp_(-z * z);
    const float tail =
        0.5f * e * t *
        (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    return {x < 0 ? tail : 1 - tail, e};
  }
};

// If gated, an element costs 2 FLOPs besides those of the activation, otherwise 1. Neither forward
// nor backward is inlined, so that all callers get the same numbers.
template <class Act>
[[gnu::noinline]] void forward(const FfnActivation& settings, const float* in, const float* linear, Index n,
                               float scale, float* out) {
  const FfnActivation desc = settings;
  if (linear) {
#pragma omp simd
    for (Index i = 0; i < n; ++i) out[i] = scale * Act::at(in[i], desc).value * Act::linear(linear[i], desc).value;
  } else {
#pragma omp simd
    for (Index i = 0; i < n; ++i) out[i] = scale * Act::at(in[i], desc).value;
  }
}

// Backward of columns that are summed together. If gated, an element costs 7 FLOPs besides those of
// value and slope, otherwise 4, and 2 or 1 more with `out`.
template <class Act, bool gated, bool with_out>
[[gnu::noinline]] float backward_sum(const FfnActivation& settings, const float* g, const float* in,
                                     const float* linear, Index n, float scale, float* din, float* dlinear,
                                     float* out) {
  const FfnActivation desc = settings;
  float dscale = 0;
#pragma omp simd reduction(+ : dscale)
  for (Index i = 0; i < n; ++i) {
    const Point a = Act::at(in[i], desc);
    const Point l = gated ? Act::linear(linear[i], desc) : Point{1, 0};
    const float ga = g[i] * a.value;
    din[i] = gated ? scale * g[i] * l.value * a.slope : scale * g[i] * a.slope;
    dscale += gated ? ga * l.value : ga;
    if (gated) dlinear[i] = scale * ga * l.slope;
    if (with_out) out[i] = gated ? scale * a.value * l.value : scale * a.value;
  }
  return dscale;
}

template <class Act>
void backward(const FfnActivation& desc, const float* g, const float* in, const float* linear, Index n, float scale,
              float* din, float* dlinear, float* out, float* dscale) {
  const auto sum = linear ? out ? backward_sum<Act, true, true> : backward_sum<Act, true, false>
                   : out ? backward_sum<Act, false, true>
                          : backward_sum<Act, false, false>;
  for (Index i = 0; i < n; i += epilogue_columns, ++dscale)
    *dscale = sum(desc, g + i, in + i, linear ? linear + i : nullptr, std::min(epilogue_columns, n - i), scale, din + i,
                  linear ? dlinear + i : nullptr, out ? out + i : nullptr);
}

template <class... Act>
constexpr std::array<ActivationKernels, sizeof...(Act)> kernels_of(formulas::ActivationList<Act...>) {
  return {{{forward<Act>, backward<Act>}...}};
}

constexpr auto table = kernels_of(formulas::Activations<VectorMath>{});

}  // namespace

ActivationKernels activation_kernels(const FfnActivation& desc) {
  return table[static_cast<int>(desc.act)];
}

// An element of y costs 12 bytes if gated, otherwise 8.
void execute(CpuDevice&, const ops::ActivationForward& op) {
  const Index f = op.y.dim(1), width = op.h.dim(1);
  const bool gated = op.activation.gated;
  const ActivationKernels kernels = activation_kernels(op.activation);
  for_chunks(op.y.dim(0), rows_per_chunk(width), [&](Index begin, Index end) {
    Floats inputs(op.h, width);
    Results outputs(op.y, f);
    for (Index r = begin; r < end; ++r) {
      const float* const in = inputs.at(r * width);
      kernels.forward(op.activation, in, gated ? in + f : nullptr, f, op.row_scale ? op.row_scale.f32()[r] : 1.0f,
                      outputs.begin(r * f));
    }
  });
}

// Computes the activation again. An element of dy costs 20 bytes if gated, otherwise 12, and 4 more
// with y.
void execute(CpuDevice&, const ops::ActivationBackward& op) {
  const Index f = op.dy.dim(1), width = op.h.dim(1), blocks = ceil_div(f, epilogue_columns);
  const bool gated = op.activation.gated;
  const ActivationKernels kernels = activation_kernels(op.activation);
  for_chunks(op.dy.dim(0), rows_per_chunk(width), [&](Index begin, Index end) {
    Floats gradients(op.dy, f), inputs(op.h, width);
    Results outputs(op.dh, width), activations(op.y, f);
    const auto sums = scratch<float>(blocks);
    for (Index r = begin; r < end; ++r) {
      const float* const in = inputs.at(r * width);
      float* const out = outputs.begin(r * width);
      const float* const gradient = gradients.at(r * f);
      kernels.backward(op.activation, gradient, in, gated ? in + f : nullptr, f,
                       op.row_scale ? op.row_scale.f32()[r] : 1.0f, out, gated ? out + f : nullptr,
                       op.y ? activations.begin(r * f) : nullptr, sums.get());
      if (op.drow_scale) op.drow_scale.f32()[r] = std::accumulate(sums.get(), sums.get() + blocks, 0.0f);
    }
  });
}

}  // namespace sy::cpu
