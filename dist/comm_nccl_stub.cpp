// Stub for builds without the cuda device: all buffers are then on the host.
#include "dist/comm_nccl.h"

namespace sy {

MakeComm nccl_on(Device& backend, int, RankContext&) {
  SY_ASSERT(false, "no NCCL for the {} backend in this build", backend.name());
}

std::string nccl_version() {
  return {};
}

std::string nccl_version_built() {
  return {};
}

int nccl_streams() {
  return 0;
}

}  // namespace sy
