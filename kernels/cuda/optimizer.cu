// Gradient clipping and AdamW.
#include <limits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/rows.h"

namespace sy::cuda {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

__global__ void clip_coefficient_kernel(In<double> squares, float clip, Out<float> coefficient) {
  const double norm = sqrt(squares[0]);
  if (threadIdx.x == 0)
    coefficient[0] = !(norm < infinity) ? nan : clip > 0 && norm > clip ? static_cast<float>(clip / norm) : 1.0f;
}

// An element costs 28 bytes, 30 with rounded, and 15 FLOPs.
struct Update {
  AdamW desc;
  In<float> coefficient, step_scalars, g;
  Out<float> w, m, v;
  Out<bf16> rounded;  // may be nullptr

  template <int N>
  __device__ void at(Index i) const {
    const float scale = coefficient[0];
    if (scale != scale) return;
    const float lr = step_scalars[0], step = lr / step_scalars[1], inverse_bias2 = 1 / step_scalars[2];
    const float beta1 = desc.beta1, beta2 = desc.beta2, keep = 1 - lr * desc.weight_decay;
    const auto gradient = load<N>(g, i);
    auto weight = load<N>(w, i), mean = load<N>(m, i), square = load<N>(v, i);
    Pack<bf16, N> low;
    for (int e = 0; e < N; ++e) {
      const float ge = scale * gradient[e];
      mean[e] = beta1 * mean[e] + (1 - beta1) * ge;
      square[e] = beta2 * square[e] + (1 - beta2) * ge * ge;
      weight[e] = keep * weight[e] - step * mean[e] / (sqrtf(square[e] * inverse_bias2) + desc.eps);
      low[e] = from_float<bf16>(weight[e]);
    }
    store<N>(w, i, weight);
    store<N>(m, i, mean);
    store<N>(v, i, square);
    if (rounded) store<N>(rounded, i, low);
  }
};

}  // namespace

void CudaBackend::do_clip_coefficient(ConstView squares, float clip, View coefficient) {
  launch(context_, {.threads = warp_size}, clip_coefficient_kernel, in<double>(squares), clip, out<float>(coefficient));
}

void CudaBackend::do_adamw(const AdamW& desc, ConstView coefficient, ConstView step_scalars, ConstView g, View w,
                           View m, View v, View rounded) {
  for_elements(context_, w.elements(), {g, w, m, v, rounded},
               Update{desc, in<float>(coefficient), in<float>(step_scalars), in<float>(g), out<float>(w), out<float>(m),
                      out<float>(v), out<bf16>(rounded)});
}

}  // namespace sy::cuda
