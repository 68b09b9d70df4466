#include "dist/device_comm.h"

namespace sy {

DeviceCollectives nccl_collectives();  // dist/nccl/

namespace {

// The libraries of device collectives, by falling preference.
DeviceCollectives (*const libraries[])() = {nccl_collectives};

}  // namespace

DeviceCollectives device_collectives() {
  for (const auto library : libraries)
    if (DeviceCollectives found = library(); found.make) return found;
  return libraries[0]();
}

MakeDeviceComm make_device_comm(Device& device, int rank, RankContext& context) {
  const DeviceCollectives library = device_collectives();
  SY_ASSERT(library.make, "no {} for the {} device in this build", library.name, device.name());
  return library.make(device, rank, context);
}

}  // namespace sy
