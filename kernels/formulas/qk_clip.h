// Factors of QK-clip (kernels/ops/qk_clip.h), for all devices.
#pragma once

#include <cmath>

#include "kernels/formulas/host_device.h"
#include "kernels/types.h"

namespace sy::formulas {

// Returns the factor of the weight of one head.
// - max_logits: [heads], indexed; kv_heads divides heads
// - head: of keys if `keys` is true, otherwise of queries
// - shared: the weight makes elements of queries whose keys all heads share
template <class MaxLogits>
SY_HOST_DEVICE float qk_clip_factor(const MaxLogits& max_logits, Index heads, Index kv_heads, float threshold,
                                    bool keys, Index head, bool shared) {
  // If a maximum is NaN, nothing is known, and the head stays.
  const auto gamma = [&](Index h) { return max_logits[h] > threshold ? threshold / max_logits[h] : 1.0f; };
  if (!keys && shared) return gamma(head);
  const Index group = heads / kv_heads, kv_head = keys ? head : head / group;
  float least = 1;
  for (Index h = kv_head * group; h < (kv_head + 1) * group; ++h) least = gamma(h) < least ? gamma(h) : least;
  const float root = sqrtf(least);
  return keys ? root : gamma(head) / root;
}

}  // namespace sy::formulas
