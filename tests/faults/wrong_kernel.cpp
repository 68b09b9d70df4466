// Replaces run(Device&, const ops::Rope&) at link time (ld --wrap): on some ranks it does nothing.
//   WRONG_ROPE   "all", or the rank (OMPI_COMM_WORLD_RANK or PMI_RANK) that does nothing; unset: no
//                rank
#include <cstdlib>
#include <string_view>

namespace sy {
class Device;
namespace ops {
struct Rope;
}
}  // namespace sy

// NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker gives
extern "C" void __real__ZN2sy3ops3runERNS_6DeviceERKNS0_4RopeE(sy::Device& device, const sy::ops::Rope& op);

extern "C" void __wrap__ZN2sy3ops3runERNS_6DeviceERKNS0_4RopeE(sy::Device& device, const sy::ops::Rope& op) {
  static const bool is_wrong = [] {
    const char* const wrong = std::getenv("WRONG_ROPE");
    if (!wrong) return false;
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
      if (const char* const rank = std::getenv(name); rank && std::string_view(rank) == wrong) return true;
    return std::string_view(wrong) == "all";
  }();
  if (!is_wrong) __real__ZN2sy3ops3runERNS_6DeviceERKNS0_4RopeE(device, op);
}
// NOLINTEND(bugprone-reserved-identifier)
