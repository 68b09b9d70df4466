// Profiler ranges (NVTX), which Nsight Systems shows beside the kernels. No-op without the cuda
// backend, or if its toolkit has no NVTX.
#pragma once

#include "kernels/tensor.h"

namespace sy {

// Opens a range of the calling thread, nested in its open ranges. layer: payload of the range; -1:
// no payload.
void begin_range(const char* what, Index layer);
// Closes the latest range.
void end_range();

}  // namespace sy
