// Activations of feed-forward layers, gated or not.
//
// FLOPs of one activation:    relu  hardtanh  relu2  sigmoid  silu  gelu_tanh  gelu
//   value                        0         0      1        3     5          9     4
//   slope, in addition           0         0      1        2     5          8     6
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/rows.h"

namespace sy::cuda {

namespace {

// An activation at one point: its value and its derivative.
struct Point {
  float value, slope;
};

__device__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

// Default treatment of the up projection: unchanged.
struct PassThrough {
  static __device__ Point linear(float l, const FfnActivation&) { return {l, 1}; }
};

struct Relu : PassThrough {
  static __device__ Point at(float x, const FfnActivation&) { return {x > 0 ? x : 0.0f, x > 0 ? 1.0f : 0.0f}; }
};

struct Relu2 : PassThrough {
  static __device__ Point at(float x, const FfnActivation&) {
    const float r = x > 0 ? x : 0.0f;
    return {r * r, 2 * r};
  }
};

struct Sigmoid : PassThrough {
  static __device__ Point at(float x, const FfnActivation&) {
    const float s = sigmoid(x);
    return {s, s * (1 - s)};
  }
};

struct Silu : PassThrough {
  static __device__ Point at(float x, const FfnActivation& desc) {
    const float u = desc.beta * x, s = sigmoid(u);
    return {x * s, s * (1 + u * (1 - s))};
  }
};

struct SiluClamped {
  static __device__ Point at(float x, const FfnActivation& desc) {
    const Point p = Silu::at(x > desc.limit ? desc.limit : x, desc);
    return {p.value, x > desc.limit ? 0.0f : p.slope};
  }
  static __device__ Point linear(float l, const FfnActivation& desc) {
    const float inside = l > desc.limit ? desc.limit : l < -desc.limit ? -desc.limit : l;
    return {inside + 1, inside == l ? 1.0f : 0.0f};
  }
};

// x * Phi(x), where Phi is the standard normal distribution: Phi(x) = 1/2 erfc(-x / sqrt 2). Its
// density is e^(-x^2 / 2) / sqrt(2 pi).
struct Gelu : PassThrough {
  static __device__ Point at(float x, const FfnActivation&) {
    const float phi = 0.5f * erfcf(-0.70710678f * x);
    return {x * phi, phi + x * expf(-0.5f * x * x) * 0.39894228f};
  }
};

// 1/2 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), where 1/2 (1 + tanh u) = sigmoid(2u).
struct GeluTanh : PassThrough {
  static __device__ Point at(float x, const FfnActivation&) {
    const float s = sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
    return {x * s, s + x * s * (1 - s) * 1.59576912f * (1 + 0.134145f * x * x)};
  }
};

struct Identity : PassThrough {
  static __device__ Point at(float x, const FfnActivation&) { return {x, 1.0f}; }
};

struct Hardtanh : PassThrough {
  static __device__ Point at(float x, const FfnActivation& desc) {
    const bool below = x < -desc.limit;
    const bool above = x > desc.limit;
    return {below ? -desc.limit : above ? desc.limit : x, below || above ? 0.0f : 1.0f};
  }
};

// A block takes a row. h: [R, gated ? 2 width : width], with the up projection last; y: [R, width].
// If gated, an element of y costs 3w bytes and 2 FLOPs besides those of the activation, otherwise
// 2w bytes and 1 FLOP.
template <class Act, bool gated, class T, int N>
__global__ void activate(FfnActivation desc, Index width, In<T> h, In<float> row_scale, Out<T> y) {
  const Index row = blockIdx.x, start = row * (gated ? 2 * width : width);
  const float scale = row_scale ? row_scale[row] : 1.0f;
  for_row<N>(width, [&](Index i) {
    const auto x = load<N>(h, start + i), linear = load<N>(h, start + (gated ? width : 0) + i);
    Pack<T, N> result;
    for (int e = 0; e < N; ++e)
      result[e] = from_float<T>(scale * Act::at(to_float(x[e]), desc).value *
                                (gated ? Act::linear(to_float(linear[e]), desc).value : 1.0f));
    store<N>(y, row * width + i, result);
  });
}

// A block takes a row and computes the activation again. dy: [R, width]; dh has the shape of h;
// drow_scale: [R] or nullptr. If gated, an element of dy costs 5w bytes and 7 FLOPs besides those
// of value and slope. Otherwise it costs 3w bytes and 4 FLOPs.
template <class Act, bool gated, class T, int N>
__global__ void activation_gradient(FfnActivation desc, Index width, In<T> dy, In<T> h, In<float> row_scale, Out<T> dh,
                                    Out<float> drow_scale) {
  const Index row = blockIdx.x, start = row * (gated ? 2 * width : width);
  const float scale = row_scale ? row_scale[row] : 1.0f;
  float dscale = 0;
  for_row<N>(width, [&](Index i) {
    const auto g = load<N>(dy, row * width + i);
    const auto x = load<N>(h, start + i), linear = load<N>(h, start + (gated ? width : 0) + i);
    Pack<T, N> dx, dlinear;
    for (int e = 0; e < N; ++e) {
      const Point a = Act::at(to_float(x[e]), desc);
      const Point l = gated ? Act::linear(to_float(linear[e]), desc) : Point{1, 0};
      const float ge = to_float(g[e]);
      dx[e] = from_float<T>(scale * ge * l.value * a.slope);
      dlinear[e] = from_float<T>(scale * ge * a.value * l.slope);
      dscale += ge * a.value * l.value;
    }
    store<N>(dh, start + i, dx);
    if constexpr (gated) store<N>(dh, start + width + i, dlinear);
  });
  if (!drow_scale) return;
  dscale = block_sum(dscale);
  if (threadIdx.x == 0) drow_scale[row] = dscale;
}

struct Functions {
  void (*forward)(Context&, const FfnActivation&, ConstView h, ConstView row_scale, View y);
  void (*backward)(Context&, const FfnActivation&, ConstView dy, ConstView h, ConstView row_scale, View dh,
                   View drow_scale);
};

template <class Act, bool gated>
void forward(Context& context, const FfnActivation& desc, ConstView h, ConstView row_scale, View y) {
  const Index width = y.dim(1);
  with_type_and_packs(width, {h, y}, [&](auto zero, auto packs) {
    using T = decltype(zero);
    constexpr int N = packs;
    launch(context, {.x = y.dim(0), .threads = row_threads(blocks_of(width, N))}, activate<Act, gated, T, N>, desc,
           width, in<T>(h), in<float>(row_scale), out<T>(y));
  });
}

template <class Act, bool gated>
void backward(Context& context, const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale, View dh,
              View drow_scale) {
  const Index width = dy.dim(1);
  with_type_and_packs(width, {dy, h, dh}, [&](auto zero, auto packs) {
    using T = decltype(zero);
    constexpr int N = packs;
    launch(context, {.x = dy.dim(0), .threads = row_threads(blocks_of(width, N))},
           activation_gradient<Act, gated, T, N>, desc, width, in<T>(dy), in<T>(h), in<float>(row_scale), out<T>(dh),
           out<float>(drow_scale));
  });
}

template <class Act, bool gated>
constexpr Functions kernels_for = {forward<Act, gated>, backward<Act, gated>};

// In the order of enum Activation; plain and gated.
constexpr Functions table[][2] = {{kernels_for<Relu, false>, kernels_for<Relu, true>},
                                  {kernels_for<Gelu, false>, kernels_for<Gelu, true>},
                                  {kernels_for<GeluTanh, false>, kernels_for<GeluTanh, true>},
                                  {kernels_for<Silu, false>, kernels_for<Silu, true>},
                                  {kernels_for<Relu2, false>, kernels_for<Relu2, true>},
                                  {kernels_for<Sigmoid, false>, kernels_for<Sigmoid, true>},
                                  {kernels_for<Identity, false>, kernels_for<Identity, true>},
                                  {kernels_for<SiluClamped, false>, kernels_for<SiluClamped, true>},
                                  {kernels_for<Hardtanh, false>, kernels_for<Hardtanh, true>}};

}  // namespace

void CudaBackend::do_activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y) {
  table[static_cast<int>(desc.act)][desc.gated].forward(context_, desc, h, row_scale, y);
}

void CudaBackend::do_activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale,
                                         View dh, View drow_scale) {
  table[static_cast<int>(desc.act)][desc.gated].backward(context_, desc, dy, h, row_scale, dh, drow_scale);
}

}  // namespace sy::cuda
