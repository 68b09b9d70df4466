// Devices for which nvcc compiled the kernels. Compute capabilities are ten times NVIDIA's: 90 is
// 9.0.
#pragma once

#include <cuda_runtime.h>

#include <vector>

namespace sy::cuda {

std::vector<int> kernel_images();
// Sets `capability` to the image that the current device runs. It is not in kernel_images() if the
// driver compiled it from PTX. If the device runs no image, the error is
// cudaErrorNoKernelImageForDevice or cudaErrorInvalidDeviceFunction.
cudaError_t kernel_image(int& capability);

}  // namespace sy::cuda
