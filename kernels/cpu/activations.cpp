// Activations of feed-forward layers, gated or not.
//
// FLOPs of one activation:    relu  hardtanh  relu2  sigmoid  silu  gelu_tanh  gelu
//   value                        0         0      1       23    25         29    39
//   slope, in addition           0         0      1        2     5          8     3
#include "kernels/cpu/activations.h"

#include <numeric>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace sy::cpu {

namespace {

// An activation at one point: its value and its derivative.
struct Point {
  float value, slope;
};

// Default treatment of the up projection: unchanged.
struct PassThrough {
  static Point linear(float l, const FfnActivation&) { return {l, 1}; }
};

struct Relu : PassThrough {
  static Point at(float x, const FfnActivation&) { return {x > 0 ? x : 0.0f, x > 0 ? 1.0f : 0.0f}; }
};

struct Relu2 : PassThrough {
  static Point at(float x, const FfnActivation&) {
    const float r = x > 0 ? x : 0.0f;
    return {r * r, 2 * r};
  }
};

struct Sigmoid : PassThrough {
  static Point at(float x, const FfnActivation&) {
    const float s = sigmoid_(x);
    return {s, s * (1 - s)};
  }
};

struct Silu : PassThrough {
  static Point at(float x, const FfnActivation& desc) {
    const float u = desc.beta * x, s = sigmoid_(u);
    return {x * s, s * (1 + u * (1 - s))};
  }
};

struct SiluClamped {
  static Point at(float x, const FfnActivation& desc) {
    const Point p = Silu::at(at_most(x, desc.limit), desc);
    return {p.value, x > desc.limit ? 0.0f : p.slope};
  }
  static Point linear(float l, const FfnActivation& desc) {
    const float inside = at_most(at_least(l, -desc.limit), desc.limit);
    return {inside + 1, inside == l ? 1.0f : 0.0f};
  }
};

// x * Phi(x), where Phi is the standard normal distribution, 1/2 (1 + erf(x / sqrt 2)). The erf is
// formula 7.1.26 of Abramowitz and Stegun (absolute error below 1.5e-7). It shares its exponential
// with the density.
struct Gelu : PassThrough {
  static Point at(float x, const FfnActivation&) {
    const float z = (x < 0 ? -x : x) * 0.70710678f;
    const float t = 1 / (1 + 0.3275911f * z);
    const float e = exp_(-z * z);
    const float tail =
        0.5f * e * t *
        (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float phi = x < 0 ? tail : 1 - tail;
    return {x * phi, phi + x * e * 0.39894228f};
  }
};

// 1/2 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), where 1/2 (1 + tanh u) = sigmoid(2u).
struct GeluTanh : PassThrough {
  static Point at(float x, const FfnActivation&) {
    const float s = sigmoid_(1.59576912f * (x + 0.044715f * x * x * x));
    return {x * s, s + x * s * (1 - s) * 1.59576912f * (1 + 0.134145f * x * x)};
  }
};

struct Identity : PassThrough {
  static Point at(float x, const FfnActivation&) { return {x, 1.0f}; }
};

struct Hardtanh : PassThrough {
  static Point at(float x, const FfnActivation& desc) {
    const bool below = x < -desc.limit;
    const bool above = x > desc.limit;
    return {below ? -desc.limit : above ? desc.limit : x, below || above ? 0.0f : 1.0f};
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
  for (Index i = 0; i < n; i += Epilogue::columns, ++dscale)
    *dscale = sum(desc, g + i, in + i, linear ? linear + i : nullptr, std::min(Epilogue::columns, n - i), scale,
                  din + i, linear ? dlinear + i : nullptr, out ? out + i : nullptr);
}

template <class Act>
constexpr ActivationKernels kernels_for = {forward<Act>, backward<Act>};

// In the order of enum Activation.
constexpr ActivationKernels table[] = {kernels_for<Relu>,     kernels_for<Gelu>,        kernels_for<GeluTanh>,
                                       kernels_for<Silu>,     kernels_for<Relu2>,       kernels_for<Sigmoid>,
                                       kernels_for<Identity>, kernels_for<SiluClamped>, kernels_for<Hardtanh>};

}  // namespace

ActivationKernels activation_kernels(const FfnActivation& desc) {
  return table[static_cast<int>(desc.act)];
}

// An element of y costs 12 bytes if gated, otherwise 8.
void CpuBackend::do_activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y) {
  const Index f = y.dim(1), width = h.dim(1);
  const ActivationKernels kernels = activation_kernels(desc);
  for_chunks(y.dim(0), rows_per_chunk(width), [&](Index begin, Index end) {
    Floats inputs(h, width);
    Results outputs(y, f);
    for (Index r = begin; r < end; ++r) {
      const float* const in = inputs.at(r * width);
      kernels.forward(desc, in, desc.gated ? in + f : nullptr, f, row_scale ? row_scale.f32()[r] : 1.0f,
                      outputs.begin(r * f));
    }
  });
}

// Computes the activation again. An element of dy costs 20 bytes if gated, otherwise 12.
void CpuBackend::do_activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale,
                                        View dh, View drow_scale) {
  const Index f = dy.dim(1), width = h.dim(1), blocks = ceil_div(f, Epilogue::columns);
  const ActivationKernels kernels = activation_kernels(desc);
  for_chunks(dy.dim(0), rows_per_chunk(width), [&](Index begin, Index end) {
    Floats gradients(dy, f), inputs(h, width);
    Results outputs(dh, width);
    const auto sums = scratch<float>(blocks);
    for (Index r = begin; r < end; ++r) {
      const float* const in = inputs.at(r * width);
      float* const out = outputs.begin(r * width);
      kernels.backward(desc, gradients.at(r * f), in, desc.gated ? in + f : nullptr, f,
                       row_scale ? row_scale.f32()[r] : 1.0f, out, desc.gated ? out + f : nullptr, nullptr, sums.get());
      if (drow_scale) drow_scale.f32()[r] = std::accumulate(sums.get(), sums.get() + blocks, 0.0f);
    }
  });
}

}  // namespace sy::cpu
