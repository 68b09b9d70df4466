// The context of a cuda device, for dist/ and tests.
#pragma once

#include "kernels/device.h"

namespace sy::cuda {

struct Context;  // kernels/cuda/context.h

// The context of a device that make_cuda made.
Context& context_of(Device& device);

}  // namespace sy::cuda
