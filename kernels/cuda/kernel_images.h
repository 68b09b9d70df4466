// The devices that nvcc has compiled the kernels for. Compute capabilities here are ten times what NVIDIA writes: 90 is 9.0.
#pragma once

#include <cuda_runtime.h>

#include <vector>

namespace sy::cuda {

std::vector<int> kernel_images();
// The one that the current device runs; another than those where the driver has compiled it from PTX.
// cudaErrorNoKernelImageForDevice or cudaErrorInvalidDeviceFunction where it runs none.
cudaError_t kernel_image(int& capability);

}  // namespace sy::cuda
