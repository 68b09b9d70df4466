#pragma once

#include "dist/mesh.h"
#include "kernels/arena.h"
#include "src/config.h"

namespace sy {

// The communicators and the memory of a device that is ready for training.
struct DeviceReservation {
  Mesh mesh;                // communicators for its buffers
  Index library_bytes = 0;  // device memory that libraries hold
  ArenaSizes arenas = {};   // memory for activations (arena_sizes())
  Index slots = 1;          // number of micro-batches in flight that the memory is for
};

// Runs each collective and GEMM of training once, and attention if it allocates memory. Then
// measures the remaining memory for activations.
// Device collectives allocate memory at the first one that needs a connection, and cuBLAS at the
// first GEMM of a kind.
// slots: number of micro-batches that can be in flight.
// Collective. Throws CollectiveError if training does not fit.
DeviceReservation warm_up_and_reserve(Comm& world, const Config& config, Index vocab, const Layout& layout,
                                      Device& device, int ranks_on_device, Index slots = 1);

}  // namespace sy
