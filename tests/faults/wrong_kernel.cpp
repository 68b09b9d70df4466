// Replaces ops::run(Device&, const ops::NormForward&) at link time (ld --wrap). On some ranks norms
// have another epsilon.
//   WRONG_NORM   "all", or the wrong rank (OMPI_COMM_WORLD_RANK or PMI_RANK); unset: no rank
#include <cstdlib>
#include <string_view>

#include "kernels/ops/norm.h"

// NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker gives
extern "C" void __real__ZN2sy3ops3runERNS_6DeviceERKNS0_11NormForwardE(sy::Device& device,
                                                                       const sy::ops::NormForward& op);

extern "C" void __wrap__ZN2sy3ops3runERNS_6DeviceERKNS0_11NormForwardE(sy::Device& device,
                                                                       const sy::ops::NormForward& op) {
  static const bool is_wrong = [] {
    const char* const wrong = std::getenv("WRONG_NORM");
    if (!wrong) return false;
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
      if (const char* const rank = std::getenv(name); rank && std::string_view(rank) == wrong) return true;
    return std::string_view(wrong) == "all";
  }();
  sy::ops::NormForward changed = op;
  if (is_wrong) changed.desc.eps += 0.01f;
  __real__ZN2sy3ops3runERNS_6DeviceERKNS0_11NormForwardE(device, changed);
}
// NOLINTEND(bugprone-reserved-identifier)
