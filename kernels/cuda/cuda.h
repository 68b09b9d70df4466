// Functions of a cuda device for dist/ and tests, beyond kernels/device.h.
#pragma once

#include <functional>

#include "kernels/device.h"

namespace sy::cuda {

struct Context;  // kernels/cuda/context.h

// The context of a device that make_cuda made.
Context& context_of(Device& device);
// Sets a hook that is called repeatedly while the host waits for the device, once the wait has
// lasted some milliseconds. The hook may throw, which ends the wait. An empty hook is not called.
void set_wait_hook(Device& device, std::function<void()> hook);

}  // namespace sy::cuda
