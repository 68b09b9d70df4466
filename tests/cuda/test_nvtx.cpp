// Tests the NVTX ranges of a step with a fake profiler. Needs no GPU.
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

#include "dist/phase.h"

namespace sy {
namespace {

std::vector<std::string> seen;

nvtxDomainHandle_t domain_made(const char* name) {
  seen.push_back(std::string("domain ") + name);
  return reinterpret_cast<nvtxDomainHandle_t>(&seen);  // any address that is not null
}

int pushed(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  EXPECT_EQ(domain, reinterpret_cast<nvtxDomainHandle_t>(&seen));
  EXPECT_EQ(range->messageType, NVTX_MESSAGE_TYPE_ASCII);
  std::string text = range->message.ascii;
  if (range->payloadType == NVTX_PAYLOAD_TYPE_INT64) text += fmt::format(" of layer {}", range->payload.llValue);
  seen.push_back(text);
  return 0;
}

int popped(nvtxDomainHandle_t domain) {
  EXPECT_EQ(domain, reinterpret_cast<nvtxDomainHandle_t>(&seen));
  seen.push_back("end");
  return 0;
}

// Called by NVTX at the first range, if a profiler is present.
int attach(NvtxGetExportTableFunc_t table_of) {
  const auto* tables = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable calls = nullptr;
  unsigned int count = 0;
  if (!tables || !tables->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &calls, &count)) return 0;
  *calls[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(domain_made);
  *calls[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(pushed);
  *calls[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(popped);
  return 1;
}

TEST(Nvtx, NestsRangesOfAStep) {
  InitializeInjectionNvtx2_fnptr = attach;
  {
    RankContext rank;
    const TraceScope step(rank, "step", {{"step", 7}});  // reported even if the step is not traced
    const ScopedPhase phase(rank, "forward pass", 2);
    TraceScope scope(rank, "route");
    scope.next("dispatch");
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"domain switchyard", "step", "forward pass of layer 2", "route of layer 2",
                                            "end", "dispatch of layer 2", "end", "end", "end"}));
}

}  // namespace
}  // namespace sy
