// Stands where the cuda backend is not built.
#include "kernels/backend.h"

namespace sy {

bool cuda_available() {
  return false;
}

std::unique_ptr<Backend> make_cuda(int) {
  bad_input("run.backend = cuda, but this build of switchyard has no CUDA backend: set run.backend to cpu or auto");
}

}  // namespace sy
