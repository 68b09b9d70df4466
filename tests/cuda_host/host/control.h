// Settings and counters of the CUDA emulator, for tests.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace sy::cuda_host {

// Receives one line for every mistake. It throws or ends the process; the default prints the line
// and aborts.
using Handler = void (*)(const std::string& mistake);
// Returns the previous handler. nullptr restores the default.
Handler set_handler(Handler handler);

// Seeds the order of blocks, and of threads between barriers. 0 means the order of their numbers.
void set_order_seed(std::uint64_t seed);

// Time for which queries of unfinished work return "not ready", counted from the first query. 0
// means that only the first query does.
void set_latency(std::chrono::milliseconds latency);

// When operations run. CUDA_HOST_ORDER in the environment sets it for a whole program: a seed, or
// "late".
// - at_once: as soon as the host enqueues them, for unit tests.
// - seeded: streams keep operations and run them in any order that streams and events allow, by
//   `seed`. Some run whenever the host enqueues an operation, the rest when the host waits for
//   them.
// - late: an operation runs only when a wait of the host needs it.
enum class Running { at_once, seeded, late };
void set_running(Running running, std::uint64_t seed = 1);

// Maximum number of unfinished operations of a stream; 0 means unlimited. If a stream is full, the
// host waits before it enqueues another one. If a collective hangs, it waits for ever.
void set_queue_limit(std::size_t operations);

void set_device_count(int count);

// Makes communicators report the ncclResult_t `result`, as if another rank were lost, after
// `launches` more launches have started. From then on collectives do not end until ncclCommAbort,
// nor does any work that waits for them. A result of 0 clears the error and ends all hanging
// collectives.
void set_nccl_error(int result, int launches = 0);
// Device memory that a communicator takes for each channel when it first uses a kind of connection.
// The kinds are: small all-reduces (trees), other collectives (rings), and messages between two
// ranks. The default is 1 MiB.
void set_nccl_channel_bytes(std::size_t bytes);
// Result of ncclGetVersion. The default is 22809, which means 2.28.9. CUDA_HOST_NCCL_VERSION in the
// environment sets it for a whole program.
void set_nccl_version(int code);

// Counts since the process began.
struct Counters {
  std::int64_t launches = 0;     // kernels, without those in graphs
  std::int64_t graphs = 0;       // graph launches
  std::int64_t allocations = 0;  // of device and of pinned host memory
  std::int64_t frees = 0;
  std::int64_t waits = 0;             // host waits for work that had not certainly ended
  std::int64_t reduces = 0;           // ncclReduce calls that have started
  std::int64_t nccl_comms = 0;        // communicators
  std::int64_t nccl_launches = 0;     // groups of calls, or single calls
  std::int64_t nccl_sends = 0;        // messages to one rank: calls of ncclSend
  std::int64_t copies = 0;            // device-to-device copies
  std::int64_t product_calls = 0;     // calls of cuBLAS
  std::int64_t product_switches = 0;  // those on another stream than the call before
  // Device memory that NCCL, cuBLAS and kernels took, including memory that NCCL freed.
  std::int64_t library_bytes = 0;
  std::int64_t collectives_at_once = 0;  // maximum number of NCCL launches in flight
};
Counters counters();
void forget_collectives();  // resets collectives_at_once

}  // namespace sy::cuda_host
