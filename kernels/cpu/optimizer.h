// AdamW. Shapes: kernels/backend.h.
#pragma once

#include "kernels/backend.h"

namespace sy::cpu {

void adamw(const AdamW& desc, ConstView g, View w, View m, View v);

}  // namespace sy::cpu
