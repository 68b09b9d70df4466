// Stub for builds without the cuda device: no device then has device buffers.
#include "dist/device_comm.h"

namespace sy {

MakeDeviceComm make_device_comm(Device& device, int, RankContext&) {
  SY_ASSERT(false, "no NCCL for the {} device in this build", device.name());
}

DeviceCollectives device_collectives() {
  return {.name = "NCCL", .version = {}, .built_version = {}, .all_streams_if = {}};
}

}  // namespace sy
