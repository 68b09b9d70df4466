// AdamW. Shapes: kernels/backend.h.
#pragma once

#include "kernels/backend.h"

namespace sy::cpu {

void clip_factor(ConstView squares, float clip, View factor);
void adamw(const AdamW& desc, ConstView factor, ConstView rates, ConstView g, View w, View m, View v);

}  // namespace sy::cpu
