#pragma once

#include "dist/mesh.h"
#include "src/config.h"

namespace sy {

// A backend made ready to train on.
struct Room {
  Mesh mesh;        // for its buffers
  Index taken = 0;  // bytes of a device that libraries keep for themselves
  Index arena = 0;  // bytes for activations (arena_bytes)
};

// NCCL takes memory for a connection at the first collective that needs it, and cuBLAS for its kernels at the first product
// of a kind, both from what activations leave. So all that training will use is used once before the activations get the
// rest. Collective. Throws AgreedError where training does not fit.
Room make_room(Comm& world, const Config& config, Index vocab, const Layout& layout, Backend& backend, int ranks_here);

}  // namespace sy
