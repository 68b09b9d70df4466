// Replaces ops::run(Device&, const ops::AttentionForward&) at link time (ld --wrap). On some ranks
// attention has another scale.
//   WRONG_ATTENTION   "all", or the wrong rank (OMPI_COMM_WORLD_RANK or PMI_RANK); unset: no rank
#include <cstdlib>
#include <string_view>

#include "kernels/ops/attention.h"

// NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker gives
extern "C" void __real__ZN2sy3ops3runERNS_6DeviceERKNS0_16AttentionForwardE(sy::Device& device,
                                                                            const sy::ops::AttentionForward& op);

extern "C" void __wrap__ZN2sy3ops3runERNS_6DeviceERKNS0_16AttentionForwardE(sy::Device& device,
                                                                            const sy::ops::AttentionForward& op) {
  static const bool is_wrong = [] {
    const char* const wrong = std::getenv("WRONG_ATTENTION");
    if (!wrong) return false;
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
      if (const char* const rank = std::getenv(name); rank && std::string_view(rank) == wrong) return true;
    return std::string_view(wrong) == "all";
  }();
  sy::ops::AttentionForward changed = op;
  if (is_wrong) changed.desc.scale *= 1.1f;
  __real__ZN2sy3ops3runERNS_6DeviceERKNS0_16AttentionForwardE(device, changed);
}
// NOLINTEND(bugprone-reserved-identifier)
