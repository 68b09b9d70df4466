// RMSNorm, LayerNorm and biases. Shapes: kernels/backend.h.
#pragma once

#include "kernels/backend.h"

namespace sy::cpu {

void norm_forward(const NormDesc& desc, ConstView x, ConstView weight, ConstView bias, View y, View stats);
void norm_backward(const NormDesc& desc, ConstView dy, ConstView x, ConstView weight, ConstView stats, View dx,
                   View dweight, View dbias);
void bias_forward(ConstView bias, View y);
void bias_backward(ConstView dy, View dbias);

}  // namespace sy::cpu
