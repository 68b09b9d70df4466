// Functions of a cuda backend for dist/ and tests, beyond kernels/backend.h.
#pragma once

#include <functional>

#include "kernels/backend.h"

namespace sy::cuda {

struct Context;  // kernels/cuda/context.h

// The context of a backend that make_cuda made.
Context& context_of(Backend& backend);
// Sets a hook that is called repeatedly while the host waits for the device, once the wait has
// lasted some milliseconds. The hook may throw, which ends the wait. An empty hook is not called.
void set_wait_hook(Backend& backend, std::function<void()> hook);

}  // namespace sy::cuda
