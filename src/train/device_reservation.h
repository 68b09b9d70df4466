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

// Runs each device collective of training in two sizes, each GEMM, and attention if it allocates
// memory. Then divides the remaining device memory among the activation arenas. The reason: NCCL
// allocates at the first use of a connection, and cuBLAS at the first GEMM of a kind. On a host,
// runs nothing and plans the arenas. slots: number of micro-batches that can be in flight.
// Collective. Throws CollectiveError if training or the copies of a checkpoint do not fit.
DeviceReservation warm_up_and_reserve(Comm& world, const Config& config, Index vocab, const Layout& layout,
                                      Device& device, int ranks_on_device, Index slots = 1);

}  // namespace sy
