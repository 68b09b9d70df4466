// Gradient clipping and updates of weights.
#include <limits>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/optimizer.h"

namespace sy::cuda {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

__global__ void clip_coefficient_kernel(In<double> squares, float clip, double limit, Out<float> coefficient) {
  const double norm = sqrt(squares[0]);
  if (threadIdx.x == 0)
    coefficient[0] = !(norm < infinity && norm <= limit) ? nan
                     : clip > 0 && norm > clip           ? static_cast<float>(clip / norm)
                                                         : 1.0f;
}

// An element costs 28 bytes, 20 with moments in bf16, 2 more with rounded, and 15 FLOPs.
template <class Moment>
struct Update {
  float beta1, beta2, eps, weight_decay;
  In<float> coefficient, step_scalars, g;
  Out<float> w;
  Out<Moment> m, v;
  Out<bf16> rounded;  // may be nullptr

  template <int N>
  __device__ void at(Index i) const {
    const float scale = coefficient[0];
    if (scale != scale) return;
    const float lr = step_scalars[0], step = lr / step_scalars[1], inverse_bias2 = 1 / step_scalars[2];
    const float keep = 1 - lr * weight_decay;
    const auto gradient = load<N>(g, i);
    auto weight = load<N>(w, i);
    auto first = load<N>(m, i), second = load<N>(v, i);
    Pack<bf16, N> low;
    for (int e = 0; e < N; ++e) {
      const float ge = scale * gradient[e];
      const float mean = beta1 * to_float(first[e]) + (1 - beta1) * ge;
      const float square = beta2 * to_float(second[e]) + (1 - beta2) * ge * ge;
      first[e] = from_float<Moment>(mean);
      second[e] = from_float<Moment>(square);
      weight[e] = keep * weight[e] - step * mean / (sqrtf(square * inverse_bias2) + eps);
      low[e] = from_float<bf16>(weight[e]);
    }
    store<N>(w, i, weight);
    store<N>(m, i, first);
    store<N>(v, i, second);
    if (rounded) store<N>(rounded, i, low);
  }
};

// An element costs 16 bytes, 12 with m in bf16, and 3 FLOPs. nesterov adds 2 FLOPs.
template <class Moment>
struct Momentum {
  float momentum;
  bool nesterov;
  In<float> coefficient;
  Out<float> g;
  Out<Moment> m;

  template <int N>
  __device__ void at(Index i) const {
    const float scale = coefficient[0];
    if (scale != scale) return;
    auto gradient = load<N>(g, i);
    auto mean = load<N>(m, i);
    for (int e = 0; e < N; ++e) {
      const float sum = momentum * to_float(mean[e]) + scale * gradient[e];
      mean[e] = from_float<Moment>(sum);
      gradient[e] = nesterov ? momentum * sum + scale * gradient[e] : sum;
    }
    store<N>(m, i, mean);
    store<N>(g, i, gradient);
  }
};

// An element costs 12 bytes, 2 less with the update in bf16, 2 more with rounded, and 3 FLOPs.
template <class T>
struct Application {
  float weight_decay;
  In<float> coefficient, lr;
  In<T> update;
  Out<float> w;
  Out<bf16> rounded;  // may be nullptr

  template <int N>
  __device__ void at(Index i) const {
    const float scale = coefficient[0];
    if (scale != scale) return;
    const float rate = lr[0], keep = 1 - rate * weight_decay;
    const auto step = load<N>(update, i);
    auto weight = load<N>(w, i);
    Pack<bf16, N> low;
    for (int e = 0; e < N; ++e) {
      weight[e] = keep * weight[e] - rate * to_float(step[e]);
      low[e] = from_float<bf16>(weight[e]);
    }
    store<N>(w, i, weight);
    if (rounded) store<N>(rounded, i, low);
  }
};

}  // namespace

void execute(CudaDevice& device, const ops::ClipCoefficient& op) {
  launch(device.context(), {.threads = warp_size}, clip_coefficient_kernel, op.squares, op.clip, op.limit,
         op.coefficient);
}

void execute(CudaDevice& device, const ops::AdamW& op) {
  const auto sum_bits = [&](Index which) {
    if (!op.bit_sums) return;
    for (const View& x : {op.w, op.m, op.v, op.rounded})
      if (x) execute(device, ops::BitSum{.x = x, .out = op.bit_sums.rows(which, 1)});
  };
  sum_bits(0);
  with_type(op.m.dtype(), [&]<class T>(T) {
    for_elements(
        device.context(), op.w.elements(), {op.g, op.w, op.m, op.v, op.rounded},
        Update<T>{op.beta1, op.beta2, op.eps, op.weight_decay, in<float>(op.coefficient), in<float>(op.step_scalars),
                  in<float>(op.g), out<float>(op.w), out<T>(op.m), out<T>(op.v), out<bf16>(op.rounded)});
  });
  sum_bits(1);
}

void execute(CudaDevice& device, const ops::MomentumUpdate& op) {
  with_type(op.m.dtype(), [&]<class T>(T) {
    for_elements(device.context(), op.m.elements(), {op.g, op.m},
                 Momentum<T>{op.momentum, op.nesterov, in<float>(op.coefficient), out<float>(op.g), out<T>(op.m)});
  });
}

void execute(CudaDevice& device, const ops::ApplyUpdate& op) {
  with_type(op.update.dtype(), [&]<class T>(T) {
    for_elements(device.context(), op.w.elements(), {op.update, op.w, op.rounded},
                 Application<T>{op.weight_decay, in<float>(op.coefficient), in<float>(op.lr), in<T>(op.update),
                                out<float>(op.w), out<bf16>(op.rounded)});
  });
}

}  // namespace sy::cuda
