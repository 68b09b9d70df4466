// Cross-entropy over a vocabulary that may lie in parts on several ranks. Shapes: kernels/backend.h.
#pragma once

#include "kernels/backend.h"

namespace sy::cpu {

void cross_entropy_forward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, View stats);
void cross_entropy_loss(ConstView stats, ConstView targets, View lse, View loss);
void loss_sums(ConstView losses, ConstView lse, ConstView targets, View sums);
void cross_entropy_backward(const CrossEntropyDesc& desc, ConstView logits, ConstView targets, ConstView lse,
                            float factor, float z_factor, View dlogits);

}  // namespace sy::cpu
