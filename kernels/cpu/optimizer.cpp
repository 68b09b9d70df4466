// Gradient clipping and AdamW.
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace sy::cpu {

void CpuBackend::do_clip_coefficient(ConstView squares, float clip, View coefficient) {
  const double norm = std::sqrt(*squares.as<double>());
  *coefficient.f32() = !std::isfinite(norm)      ? std::numeric_limits<float>::quiet_NaN()
                       : clip > 0 && norm > clip ? static_cast<float>(clip / norm)
                                                 : 1.0f;
}

// An element costs 28 bytes, 30 with `rounded`, and 15 FLOPs.
void CpuBackend::do_adamw(const AdamW& desc, ConstView coefficient, ConstView step_scalars, ConstView g, View w, View m,
                          View v, View rounded) {
  if (std::isnan(*coefficient.f32())) return;
  for_chunks(w.elements(), chunk_elements, [&](Index begin, Index end) {
    // The loop uses local copies, because the compiler then knows that no store through wp, mp or
    // vp changes them.
    const float beta1 = desc.beta1, beta2 = desc.beta2, eps = desc.eps, scale = *coefficient.f32();
    const float lr = step_scalars.f32()[0], step = lr / step_scalars.f32()[1],
                inverse_bias2 = 1 / step_scalars.f32()[2];
    const float keep = 1 - lr * desc.weight_decay;
    const float* const gp = g.f32();
    float* const wp = w.f32();
    float* const mp = m.f32();
    float* const vp = v.f32();
#pragma omp simd
    for (Index i = begin; i < end; ++i) {
      const float gi = scale * gp[i];
      const float mi = beta1 * mp[i] + (1 - beta1) * gi;
      const float vi = beta2 * vp[i] + (1 - beta2) * gi * gi;
      mp[i] = mi;
      vp[i] = vi;
      wp[i] = keep * wp[i] - step * mi / (std::sqrt(vi * inverse_bias2) + eps);
    }
    if (rounded) round(wp + begin, end - begin, rounded.as<Bf16>() + begin);
  });
}

}  // namespace sy::cpu
