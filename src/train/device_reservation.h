#pragma once

#include "dist/mesh.h"
#include "src/config.h"

namespace sy {

// The communicators and the memory of a device that is ready for training.
struct DeviceReservation {
  Mesh mesh;                // communicators for its buffers
  Index library_bytes = 0;  // device memory that libraries hold
  Index arena_bytes = 0;    // memory for activations (arena_bytes())
};

// Runs each collective and GEMM of training once, then measures the remaining memory for
// activations.
// Device collectives allocate memory at the first one that needs a connection, and cuBLAS at the
// first GEMM of a kind. Collective. Throws CollectiveError if training does not fit.
DeviceReservation warm_up_and_reserve(Comm& world, const Config& config, Index vocab, const Layout& layout,
                                      Device& backend, int ranks_on_device);

}  // namespace sy
