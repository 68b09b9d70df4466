// Stub for a toolkit without NVTX.
#include "kernels/profiler_range.h"

namespace sy {

ProfilerRange::ProfilerRange(const char*, Index) {}

ProfilerRange::~ProfilerRange() = default;

}  // namespace sy
