#include "kernels/profiler_range.h"

#include <nvtx3/nvToolsExt.h>

namespace sy {
namespace {

// A domain of its own, so that a profiler separates our ranges from those of libraries.
nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t handle = nvtxDomainCreateA("switchyard");
  return handle;
}

}  // namespace

ProfilerRange::ProfilerRange(const char* name, Index layer) {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  range.payloadType = layer < 0 ? NVTX_PAYLOAD_UNKNOWN : NVTX_PAYLOAD_TYPE_INT64;
  range.payload.llValue = layer;
  nvtxDomainRangePushEx(domain(), &range);
}

ProfilerRange::~ProfilerRange() {
  nvtxDomainRangePop(domain());
}

}  // namespace sy
