#pragma once

#include "dist/mesh.h"
#include "src/config.h"

namespace sy {

// The communicators and the memory of a backend that is ready for training.
struct Room {
  Mesh mesh;        // communicators for its buffers
  Index taken = 0;  // bytes of device memory that libraries hold
  Index arena = 0;  // bytes for activations (arena_bytes)
};

// Runs everything that training will use once, then measures the memory that is left for
// activations.
// NCCL allocates memory at the first collective that needs a connection, and cuBLAS at the first
// GEMM of a kind. Collective. Throws AgreedError if training does not fit.
Room make_room(Comm& world, const Config& config, Index vocab, const Layout& layout, Backend& backend, int ranks_here);

}  // namespace sy
