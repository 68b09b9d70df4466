// Stub for a build without the cuda device.
#include "kernels/cuda/devices.h"
#include "kernels/device.h"

namespace sy {

namespace cuda {

Choice choose_device(int) {
  return {-1, "this build of switchyard has no CUDA backend"};
}

std::vector<Gpu> visible_devices() {
  return {};
}

std::vector<Gpu> find_devices(int, int) {
  return {};
}

Versions versions() {
  return {};
}

}  // namespace cuda

bool cuda_available() {
  return false;
}

std::unique_ptr<Device> make_cuda(int local_rank) {
  throw NoDevice("cuda", cuda::choose_device(local_rank).missing);
}

}  // namespace sy
