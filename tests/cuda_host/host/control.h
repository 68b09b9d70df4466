// What a test may ask of the stand-in.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace sy::cuda_host {

// Called with one line for every mistake. It throws or ends the process; the default prints the line and aborts.
using Handler = void (*)(const std::string& mistake);
// Returns the former one; null: the default.
Handler set_handler(Handler handler);

// Seeds the order in which blocks, and threads between barriers, run. 0: as they are numbered.
void set_order_seed(std::uint64_t seed);

// How long queries say "not ready", from the first one on, of what has not surely ended. 0: once.
void set_latency(std::chrono::milliseconds latency);

// When operations run. At once: as the host gives them, which is what unit tests want. Otherwise streams keep them, and they run
// in any order that streams and events allow, by `seed`: some whenever the host gives the device something, the rest when the
// host waits for them. As late as possible: only what a wait of the host needs, in it. The environment's CUDA_HOST_ORDER sets
// it for a whole program: a seed, or "late".
enum class Running { at_once, seeded, late };
void set_running(Running running, std::uint64_t seed = 1);

// How many operations a stream holds that have not ended: the host that gives it one more waits until it has room, for ever
// where a collective hangs. 0: any number.
void set_queue_limit(std::size_t operations);

void set_device_count(int count);

// The ncclResult_t that communicators report, as if another rank were lost, once so many more launches have started: collectives
// do not end, nor does what waits for them, until ncclCommAbort. 0: none is lost, and what was under way ends.
void set_nccl_error(int result, int launches = 0);
// What a communicator takes of its device's memory for each channel, when it is first used so: for an all-reduce of little
// (trees), for other collectives (rings), and for messages between two ranks. 1 MiB is the default.
void set_nccl_channel_bytes(std::size_t bytes);
// What ncclGetVersion says: 22809 for 2.28.9, which is the default. The environment's CUDA_HOST_NCCL_VERSION sets it for a whole
// program.
void set_nccl_version(int code);

// What the host has done since the process began.
struct Counters {
  std::int64_t launches = 0;     // of kernels; not those in graphs
  std::int64_t graphs = 0;       // launched
  std::int64_t allocations = 0;  // device and pinned host memory
  std::int64_t frees = 0;
  std::int64_t waits = 0;             // for what had not surely ended
  std::int64_t reduces = 0;           // ncclReduce that have started
  std::int64_t nccl_launches = 0;     // of groups of calls, or of single ones
  std::int64_t copies = 0;            // from the device to itself
  std::int64_t product_calls = 0;     // of cuBLAS
  std::int64_t product_switches = 0;  // those, given to another stream than the one before
  std::int64_t library_bytes = 0;     // of device memory that NCCL, cuBLAS and kernels took, what NCCL freed included
  std::int64_t collectives_at_once = 0;  // most launches of NCCL that had started and not ended
};
Counters counters();
void forget_collectives();  // collectives_at_once begins anew

}  // namespace sy::cuda_host
