// What dist/ and tests need of a cuda backend beyond kernels/backend.h.
#pragma once

#include <functional>

#include "kernels/backend.h"

namespace sy::cuda {

struct Context;  // kernels/cuda/context.h

// The context of a backend that make_cuda made.
Context& context_of(Backend& backend);
// Sets what is called again and again while the host waits for the device, once it has waited for some milliseconds.
// The hook may throw, which ends the wait. An empty one is not called.
void set_wait_hook(Backend& backend, std::function<void()> hook);

}  // namespace sy::cuda
