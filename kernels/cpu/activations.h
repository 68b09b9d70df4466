// The activations of feed-forward layers, gated or not. Shapes: kernels/backend.h.
#pragma once

#include "kernels/backend.h"

namespace sy::cpu {

void activation_forward(const FfnActivation& desc, ConstView h, ConstView row_scale, View y);
void activation_backward(const FfnActivation& desc, ConstView dy, ConstView h, ConstView row_scale, View dh,
                         View drow_scale);

}  // namespace sy::cpu
