// Gradient clipping and updates of weights.
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/optimizer.h"

namespace sy::cpu {

void execute(CpuDevice&, const ops::ClipCoefficient& op) {
  const double norm = std::sqrt(*op.squares.as<double>());
  const bool applies = std::isfinite(norm) && norm <= op.limit;
  *op.coefficient.f32() = !applies                        ? std::numeric_limits<float>::quiet_NaN()
                          : op.clip > 0 && norm > op.clip ? static_cast<float>(op.clip / norm)
                                                          : 1.0f;
}

namespace {

void update_chunk(const ops::AdamW& op, Index begin, Index end) {
  // The loop uses local copies, because the compiler then knows that no store through wp, mp or
  // vp changes them.
  const float beta1 = op.beta1, beta2 = op.beta2, eps = op.eps, scale = *op.coefficient.f32();
  const float lr = op.step_scalars.f32()[0], step = lr / op.step_scalars.f32()[1],
              inverse_bias2 = 1 / op.step_scalars.f32()[2];
  const float keep = 1 - lr * op.weight_decay;
  const float* const gp = op.g.f32();
  float* const wp = op.w.f32();
  Results m(op.m, end - begin), v(op.v, end - begin);
  float* const mp = m.update(begin, end - begin) - begin;
  float* const vp = v.update(begin, end - begin) - begin;
#pragma omp simd
  for (Index i = begin; i < end; ++i) {
    const float gi = scale * gp[i];
    const float mi = beta1 * mp[i] + (1 - beta1) * gi;
    const float vi = beta2 * vp[i] + (1 - beta2) * gi * gi;
    mp[i] = mi;
    vp[i] = vi;
    wp[i] = keep * wp[i] - step * mi / (std::sqrt(vi * inverse_bias2) + eps);
  }
  if (op.rounded) round(wp + begin, end - begin, op.rounded.as<Bf16>() + begin);
}

}  // namespace

// An element costs 28 bytes, 20 with moments in bf16, 2 more with `rounded`, and 15 FLOPs. Sums of
// bits read a chunk from the cache.
void execute(CpuDevice&, const ops::AdamW& op) {
  const bool updates = !std::isnan(*op.coefficient.f32()), sums = op.bit_sums.present();
  if (!updates && !sums) return;
  std::uint32_t before = 0, after = 0;
  const auto sum = [&](Index begin, Index end) {
    return bit_sum(op.w, begin, end) + bit_sum(op.m, begin, end) + bit_sum(op.v, begin, end) +
           bit_sum(op.rounded, begin, end);
  };
  for_chunks(op.w.elements(), chunk_elements, [&](Index begin, Index end) {
    const std::uint32_t old = sums ? sum(begin, end) : 0;
    if (updates) update_chunk(op, begin, end);
    if (!sums) return;
    const std::uint32_t now = updates ? sum(begin, end) : old;
#pragma omp atomic
    before += old;
#pragma omp atomic
    after += now;
  });
  if (!sums) return;
  add_bit_sum(before, op.bit_sums.rows(0, 1));
  add_bit_sum(after, op.bit_sums.rows(1, 1));
}

// An element costs 16 bytes, 12 with m in bf16, and 3 FLOPs. `nesterov` adds 2 FLOPs.
void execute(CpuDevice&, const ops::MomentumUpdate& op) {
  if (std::isnan(*op.coefficient.f32())) return;
  for_chunks(op.m.elements(), chunk_elements, [&](Index begin, Index end) {
    const float momentum = op.momentum, scale = *op.coefficient.f32();
    float* const gp = op.g.f32();
    Results m(op.m, end - begin);
    float* const mp = m.update(begin, end - begin) - begin;
#pragma omp simd
    for (Index i = begin; i < end; ++i) mp[i] = momentum * mp[i] + scale * gp[i];
    if (!op.nesterov) {
      std::copy(mp + begin, mp + end, gp + begin);
      return;
    }
#pragma omp simd
    for (Index i = begin; i < end; ++i) gp[i] = momentum * mp[i] + scale * gp[i];
  });
}

// An element costs 12 bytes, 2 less with the update in bf16, 2 more with `rounded`, and 3 FLOPs.
void execute(CpuDevice&, const ops::ApplyUpdate& op) {
  if (std::isnan(*op.coefficient.f32())) return;
  for_chunks(op.w.elements(), chunk_elements, [&](Index begin, Index end) {
    const float lr = *op.lr.f32(), keep = 1 - lr * op.weight_decay;
    Floats update(op.update, end - begin);
    const float* const up = update.at(begin, end - begin) - begin;
    float* const wp = op.w.f32();
#pragma omp simd
    for (Index i = begin; i < end; ++i) wp[i] = keep * wp[i] - lr * up[i];
    if (op.rounded) round(wp + begin, end - begin, op.rounded.as<Bf16>() + begin);
  });
}

}  // namespace sy::cpu
