#include "kernels/cuda/expert_products.h"

namespace sy::cuda {

std::unique_ptr<ExpertProducts> make_expert_products(Context&, const cudaDeviceProp&) {
  return nullptr;
}

}  // namespace sy::cuda
