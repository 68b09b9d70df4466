// Activations of feed-forward layers, gated or not.
//
// FLOPs of one activation:    relu  hardtanh  relu2  sigmoid  silu  gelu_tanh  gelu
//   value                        0         0      1        3     5          9     4
//   slope, in addition           0         0      1        2     5          8     6
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/formulas/activation.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/ffn.h"

namespace sy::cuda {

namespace {

using formulas::Point;

struct DeviceMath {
  SY_HOST_DEVICE static float sigmoid(float x) { return 1 / (1 + expf(-x)); }
  // Phi(x) = 1/2 erfc(-x / sqrt 2)
  SY_HOST_DEVICE static formulas::Normal normal(float x) {
    return {0.5f * erfcf(-0.70710678f * x), expf(-0.5f * x * x)};
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
    store<N>(y, row * width + i, pack_of<T, N>([&](int e) {
               return scale * Act::at(to_float(x[e]), desc).value *
                      (gated ? Act::linear(to_float(linear[e]), desc).value : 1.0f);
             }));
  });
}

// A block takes a row and computes the activation again. dy: [R, width]; dh has the shape of h;
// drow_scale: [R] or nullptr. If gated, an element of dy costs 5w bytes and 7 FLOPs besides those
// of value and slope. Otherwise it costs 3w bytes and 4 FLOPs. The activation, y, costs w bytes and
// 1 or 2 FLOPs more.
//   y: [R, width] or nullptr; it contains dy if dy is nullptr
template <class Act, bool gated, class T, int N>
__global__ void activation_gradient(FfnActivation desc, Index width, In<T> dy, In<T> h, In<float> row_scale, Out<T> dh,
                                    Out<float> drow_scale, Out<T> y) {
  const Index row = blockIdx.x, start = row * (gated ? 2 * width : width);
  const float scale = row_scale ? row_scale[row] : 1.0f;
  float dscale = 0;
  for_row<N>(width, [&](Index i) {
    const auto g = dy ? load<N>(dy, row * width + i) : load<N>(y, row * width + i);
    const auto x = load<N>(h, start + i), linear = load<N>(h, start + (gated ? width : 0) + i);
    Pack<T, N> dx, dlinear, result;
    for (int e = 0; e < N; ++e) {
      const Point a = Act::at(to_float(x[e]), desc);
      const Point l = gated ? Act::linear(to_float(linear[e]), desc) : Point{1, 0};
      const float ge = to_float(g[e]);
      dx[e] = from_float<T>(scale * ge * l.value * a.slope);
      dlinear[e] = from_float<T>(scale * ge * a.value * l.slope);
      dscale += ge * a.value * l.value;
      result[e] = from_float<T>(scale * a.value * l.value);
    }
    store<N>(dh, start + i, dx);
    if (y) store<N>(y, row * width + i, result);
    if constexpr (gated) store<N>(dh, start + width + i, dlinear);
  });
  if (!drow_scale) return;
  dscale = block_sum(dscale);
  if (threadIdx.x == 0) drow_scale[row] = dscale;
}

// Calls f(Act{}, flag): the activation, and whether it is gated, as types.
template <class F, class... Act>
void with_activation(const FfnActivation& desc, formulas::ActivationList<Act...>, F f) {
  with_flag(desc.gated, [&](auto gated) {
    int number = 0;
    ((number++ == static_cast<int>(desc.act) ? f(Act{}, gated) : void()), ...);
  });
}
using Activations = formulas::Activations<DeviceMath>;

}  // namespace

void execute(CudaDevice& device, const ops::ActivationForward& op) {
  const Index width = op.y.dim(1);
  with_activation(op.activation, Activations{}, [&]<class Act>(Act, auto gated) {
    with_type_and_packs(width, {op.h, op.y}, [&]<class T, int N>(T, PackSize<N>) {
      launch(device.context(), {.x = op.y.dim(0), .threads = row_threads(blocks_of(width, N))},
             activate<Act, gated, T, N>, op.activation, width, op.h, op.row_scale, op.y);
    });
  });
}

void execute(CudaDevice& device, const ops::ActivationBackward& op) {
  const Index width = op.dy.dim(1);
  const ConstView dy = op.y && op.y.bytes() == op.dy.bytes() ? ConstView() : op.dy;
  with_activation(op.activation, Activations{}, [&]<class Act>(Act, auto gated) {
    with_type_and_packs(width, {op.dy, op.h, op.dh, op.y}, [&]<class T, int N>(T, PackSize<N>) {
      launch(device.context(), {.x = op.dy.dim(0), .threads = row_threads(blocks_of(width, N))},
             activation_gradient<Act, gated, T, N>, op.activation, width, dy, op.h, op.row_scale, op.dh, op.drow_scale,
             op.y);
    });
  });
}

void execute(CudaDevice& device, const ops::FfnForward& op) {
  ops::run_unfused(device, op);
}

void execute(CudaDevice& device, const ops::FfnBackward& op) {
  ops::run_unfused(device, op);
}

}  // namespace sy::cuda
