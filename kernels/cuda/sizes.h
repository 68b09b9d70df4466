// Sizes of the cuda device, also for builds without CUDA.
#pragma once

#include "kernels/tensor.h"

namespace sy::cuda {

constexpr Index logits_chunk = Index{256} << 20;  // see Device::logits_chunk

}  // namespace sy::cuda
