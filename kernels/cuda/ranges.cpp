#include "kernels/ranges.h"

#include <nvtx3/nvToolsExt.h>

namespace sy {
namespace {

// A domain of its own, so that a profiler separates our ranges from those of libraries.
nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t made = nvtxDomainCreateA("switchyard");
  return made;
}

}  // namespace

void begin_range(const char* what, Index layer) {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = what;
  range.payloadType = layer < 0 ? NVTX_PAYLOAD_UNKNOWN : NVTX_PAYLOAD_TYPE_INT64;
  range.payload.llValue = layer;
  nvtxDomainRangePushEx(domain(), &range);
}

void end_range() {
  nvtxDomainRangePop(domain());
}

}  // namespace sy
