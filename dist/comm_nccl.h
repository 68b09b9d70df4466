// Collectives over NCCL, on buffers of the cuda backend.
#pragma once

#include "dist/comm.h"
#include "kernels/backend.h"

namespace sy {

// Communicators of one kind share a stream: their collectives run in the order in which they were started.
enum class CommStream { tokens, gradients };

// The ranks of `host`, which carries the NCCL id to all of them and is kept. `backend` is a cuda backend and must outlive
// it. Collective. Throws Failure where NCCL refuses.
std::unique_ptr<Comm> make_comm_nccl(std::unique_ptr<Comm> host, Backend& backend, CommStream stream);

}  // namespace sy
