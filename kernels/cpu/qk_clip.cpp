// QK-clip.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/formulas/qk_clip.h"
#include "kernels/ops/qk_clip.h"

namespace sy::cpu {

// An element costs 4 bytes.
void execute(CpuDevice&, const ops::MaxLogits& op) {
  const Index B = op.largest.dim(0), H = op.largest.dim(1), S = op.largest.dim(2);
  for_chunks(H, rows_per_chunk(B * S), [&](Index begin, Index end) {
    for (Index h = begin; h < end; ++h) {
      float& most = op.max_logits.f32()[h];
      for (Index b = 0; b < B; ++b) {
        const float* const row = op.largest.f32() + (b * H + h) * S;
        for (Index s = 0; s < S; ++s) most = std::max(most, row[s]);
      }
    }
  });
}

// An element of a head that is clipped costs 8 bytes, 10 with `rounded`.
void execute(CpuDevice&, const ops::QkClip& op) {
  if (std::isnan(*op.coefficient.f32())) return;
  for_chunks(op.w.elements(), chunk_elements, [&](Index begin, Index end) {
    float* const w = op.w.f32();
    for (Index i = begin; i < end;) {
      const Index head = (op.offset + i) / op.head_elements, at = (op.offset + i) % op.head_elements;
      const bool shared = at < op.shared;
      const Index next = std::min(end, i + (shared ? op.shared : op.head_elements) - at);
      const float factor = formulas::qk_clip_factor(op.max_logits.f32(), op.max_logits.dim(0), op.kv_heads,
                                                    op.threshold, op.keys, head, shared);
      if (factor != 1)
        for (Index j = i; j < next; ++j) w[j] *= factor;
      if (factor != 1 && op.rounded) round(w + i, next - i, op.rounded.as<Bf16>() + i);
      i = next;
    }
  });
}

}  // namespace sy::cpu
