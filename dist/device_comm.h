// Communicators on the buffers of a device, by the build's library of device collectives.
//
// Each library is a folder of dist/, such as dist/nccl/, and a row of `libraries` in
// dist/device_comm.cpp. A build without the library has a stub of it.
//
// Collectives of one CommStream run one after the other, in the order of their start.
// This order must be equal on all ranks. The streams (DeviceCollectives::streams) overlap with each
// other and with compute.
//
// While the host waits for the device, it polls the communicators for errors. The first error
// throws a Failure that names rank, peers, collective and layer. All ranks must end after it.
// A library may not report a peer that hangs, or that died on the same machine. Therefore the
// watchdog (dist/watchdog.h) gets the oldest collective in flight.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/comm.h"
#include "kernels/device.h"

namespace sy {

// Stream of a communicator. Gradients have their own, so that tokens do not wait for them.
enum class CommStream { tokens, gradients };
constexpr int num_comm_streams = 2;

// Makes a communicator of the ranks of `host`, which it then owns. The first call for a device has
// the group of all ranks. Later calls have groups of equal size, and are collective over all ranks.
// Groups of the same ranks and stream share connections. Throws Failure if the library returns an
// error.
using MakeDeviceComm = std::function<std::unique_ptr<Comm>(std::unique_ptr<Comm> host, CommStream stream)>;

// Returns a function that makes communicators of one device.
// The device and the context must outlive the communicators.
// - rank: this process's rank in the world, for messages
// - context: gets the oldest collective in flight (RankContext::device_collective)
//
// An internal error if the device's buffers are in host memory, or if the build has no library.
MakeDeviceComm make_device_comm(Device& device, int rank, RankContext& context);

// A library of device collectives.
struct DeviceCollectives {
  std::string name;
  // Version of the loaded library and of the one at compile time; empty in a build without it.
  std::string version = {}, built_version = {};
  // Number of CommStreams that overlap; 0 in a build without the library.
  int streams = 0;
  std::string all_streams_if = {};  // condition for num_comm_streams streams
  bool shares_devices = false;      // true if several ranks may use one device
  // make_device_comm() of this library; nullptr in a build without it
  MakeDeviceComm (*make)(Device& device, int rank, RankContext& context) = nullptr;
};
// The library that this build uses: the first row of the table that it has. If it has none, the
// first row.
DeviceCollectives device_collectives();

}  // namespace sy
