// Stands where the cuda backend is not built: no backend then has device buffers.
#include "dist/comm_nccl.h"

namespace sy {

std::unique_ptr<Comm> make_comm_nccl(std::unique_ptr<Comm>, Backend& backend, CommStream) {
  SY_ASSERT(false, "no NCCL for the {} backend in this build", backend.name());
}

}  // namespace sy
