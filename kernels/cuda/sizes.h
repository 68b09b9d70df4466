// Sizes of the cuda backend, also for builds without CUDA.
#pragma once

#include "kernels/tensor.h"

namespace sy::cuda {

constexpr Index logits_at_once = Index{256} << 20;  // see Backend::logits_at_once

}  // namespace sy::cuda
