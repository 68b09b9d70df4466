// Which devices nvcc has compiled the kernels for. Compute capabilities here are ten times NVIDIA's: 90 is 9.0.
#pragma once

#include <cuda_runtime.h>

#include <vector>

namespace sy::cuda {

std::vector<int> kernel_images();
// Gives the image that the current device runs, which is none of kernel_images() where the driver has compiled it from
// PTX. Returns cudaErrorNoKernelImageForDevice or cudaErrorInvalidDeviceFunction where the device runs none.
cudaError_t kernel_image(int& capability);

}  // namespace sy::cuda
