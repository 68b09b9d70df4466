// Profiler ranges (NVTX), which Nsight Systems shows beside the kernels. No-op without the cuda
// device, or if its toolkit has no NVTX.
#pragma once

#include "kernels/tensor.h"

namespace sy {

// A range of the calling thread until the end of the scope, nested in the thread's open ranges.
class ProfilerRange {
 public:
  // layer: payload of the range; -1: no payload.
  ProfilerRange(const char* name, Index layer);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace sy
