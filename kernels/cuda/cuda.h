// What others need of a cuda backend beyond kernels/backend.h.
#pragma once

#include <functional>

#include "kernels/backend.h"

namespace sy::cuda {

struct Context;  // kernels/cuda/context.h

// Of a backend that make_cuda made.
Context& context_of(Backend& backend);
// Called again and again while the host waits for the device, once it has waited for some milliseconds; it may throw, which
// ends the wait. None: nothing is called.
void set_wait_hook(Backend& backend, std::function<void()> hook);

}  // namespace sy::cuda
