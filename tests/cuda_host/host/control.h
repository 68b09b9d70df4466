// What a test may ask of the stand-in.
#pragma once

#include <chrono>
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

void set_device_count(int count);

// The ncclResult_t that communicators report from now on, as if another rank were lost: collectives do not end, nor does
// what waits for them, until ncclCommAbort. 0: none is lost, and what was under way ends.
void set_nccl_error(int result);

// What the host has done since the process began.
struct Counters {
  std::int64_t launches = 0;     // of kernels; not those in graphs
  std::int64_t graphs = 0;       // launched
  std::int64_t allocations = 0;  // device and pinned host memory
  std::int64_t frees = 0;
  std::int64_t waits = 0;  // for what had not surely ended
};
Counters counters();

}  // namespace sy::cuda_host
