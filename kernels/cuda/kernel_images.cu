#include "kernels/cuda/kernel_images.h"

namespace sy::cuda {
namespace {

__global__ void nothing() {}  // compiled for the same devices as all other kernels

}  // namespace

std::vector<int> kernel_images() {
  std::vector<int> images{__CUDA_ARCH_LIST__};
  for (int& image : images) image /= 10;
  return images;
}

cudaError_t kernel_image(int& capability) {
  cudaFuncAttributes attributes{};
  const cudaError_t code = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(nothing));
  capability = attributes.binaryVersion;
  return code;
}

}  // namespace sy::cuda
