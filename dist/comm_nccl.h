// Collectives over NCCL, on buffers of the cuda backend.
//
// They run on streams of their own: those of one CommStream one after the other, in the order in which they were started,
// which is the same on all ranks; the two kinds (but see nccl_streams), and what the backend computes, beside each other. While
// the host waits for the device, the communicators are asked for errors; the first one throws a Failure that names rank, peers,
// collective and layer, after which all ranks must end. The watchdog (dist/watchdog.h) is told which collective is under way: NCCL does not
// report a peer that hangs, or one on the same machine that died.
#pragma once

#include <functional>
#include <string>

#include "dist/comm.h"
#include "kernels/backend.h"

namespace sy {

// Gradients have a stream of their own, so that tokens need not wait behind them.
enum class CommStream { tokens, gradients };
constexpr int num_comm_streams = 2;

// Makes a communicator of the ranks of `host`, which carries the NCCL id to all of them and is kept. Collective. Throws
// Failure where NCCL refuses.
using MakeComm = std::function<std::unique_ptr<Comm>(std::unique_ptr<Comm> host, CommStream stream)>;

// For a cuda backend, which must outlive the communicators. rank: of this process in the world, for messages.
MakeComm nccl_on(Backend& backend, int rank);

// Version of the loaded NCCL: "2.28.9"; empty in a build without NCCL.
std::string nccl_version();
// Version of the NCCL that this program was compiled with; empty in a build without NCCL.
std::string nccl_version_built();

// Streams that its collectives run on: one alone before NCCL 2.26, which cannot keep two communicators from waiting for each
// other for ever, or where the user has NCCL_LAUNCH_ORDER_IMPLICIT = 0; none where this build has no NCCL.
int nccl_streams();

}  // namespace sy
