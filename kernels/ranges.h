// Ranges on the time line of a profiler: NVTX, which Nsight Systems shows beside the kernels. Without the cuda backend, or where
// its toolkit has no NVTX, nothing.
#pragma once

#include "kernels/tensor.h"

namespace sy {

// Opens a range of the calling thread, within those that it has open. layer: told as the range's payload; -1: none.
void begin_range(const char* what, Index layer);
// Closes the latest one.
void end_range();

}  // namespace sy
