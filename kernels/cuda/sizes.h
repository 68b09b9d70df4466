// What the cuda backend asks for, known where there is none.
#pragma once

#include "kernels/tensor.h"

namespace sy::cuda {

constexpr Index logits_at_once = Index{256} << 20;  // of Backend

}  // namespace sy::cuda
