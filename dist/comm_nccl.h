// Collectives over NCCL, on buffers of the cuda device.
//
// Collectives of one CommStream run one after the other, in the order of their start.
// This order must be equal on all ranks. The two streams (but see nccl_streams) overlap with each
// other and with compute.
//
// While the host waits for the device, it polls the communicators for errors. The first error
// throws a Failure that names rank, peers, collective and layer. All ranks must end after it.
// NCCL does not report a peer that hangs, or that died on the same machine. Therefore the watchdog
// (dist/watchdog.h) gets the oldest collective in flight.
#pragma once

#include <functional>
#include <string>

#include "dist/comm.h"
#include "kernels/device.h"

namespace sy {

// Stream of a communicator. Gradients have their own, so that tokens do not wait for them.
enum class CommStream { tokens, gradients };
constexpr int num_comm_streams = 2;

// Makes a communicator of the ranks of `host`, which it owns and uses to broadcast the NCCL id.
// Collective. Throws Failure if NCCL returns an error.
using MakeComm = std::function<std::unique_ptr<Comm>(std::unique_ptr<Comm> host, CommStream stream)>;

// Returns a factory of communicators for a cuda backend, which must outlive the communicators.
// rank: this process's rank in the world, for messages. context: gets the collectives in flight.
MakeComm nccl_on(Device& backend, int rank, RankContext& context);

// Returns the version of the loaded NCCL: "2.28.9"; empty in a build without NCCL.
std::string nccl_version();
// Returns the version of NCCL at compile time; empty in a build without NCCL.
std::string nccl_version_built();

// Returns the number of streams for collectives; 0 in a build without NCCL.
// It is 1 before NCCL 2.26, whose communicators may deadlock if two are in use at once.
// It is also 1 if the user sets NCCL_LAUNCH_ORDER_IMPLICIT = 0.
int nccl_streams();

}  // namespace sy
