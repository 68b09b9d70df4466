// State of one rank beside its tensors: wait and phase for the watchdog, trace, and checks.
//
// main makes one RankContext and passes it to the Runtime (dist/runtime.h). Communicators carry it:
// those that are split from one share its context. Tests and planning make their own.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dist/file_activity.h"
#include "dist/step_times.h"
#include "kernels/blocked_on.h"
#include "kernels/tensor.h"

namespace sy {

// Phase of the thread that computes. Its texts must live until the process ends.
struct Phase {
  const char* name = "";      // "forward pass"; empty if unknown
  Index layer = -1;           // -1: no layer
  const char* subphase = "";  // "dispatch"; empty: the whole phase
  Index step = 0;             // training step, from 1; 0: no step
  // " in the dispatch of the forward pass of layer 2, step 7"; empty if nothing is known.
  std::string describe() const {
    const std::string number = step > 0 ? fmt::format("step {}", step) : "";
    if (!*name) return step > 0 ? " in " + number : "";
    return fmt::format(" in the {}{}{}{}{}{}", subphase, *subphase ? " of the " : "", name,
                       layer < 0 ? "" : fmt::format(" of layer {}", layer), step > 0 ? ", " : "", number);
  }
};

// Current phase of a rank. The thread that computes sets it; any thread may read a copy.
class PhaseState {
 public:
  const Phase& current() const { return current_; }  // only for the thread that computes
  Phase read() const { return published_.read(); }
  std::uint64_t version() const { return published_.version(); }  // changes with each set()
  // Sets and publishes the phase, and returns the previous one.
  Phase set(const Phase& next) {
    published_.write(next);
    return std::exchange(current_, next);
  }

 private:
  Phase current_;
  Seqlock<Phase> published_;
};

// A span of a step in host time. On a GPU the work itself may run later.
struct TraceSpan {
  using Number = std::pair<const char*, Index>;  // for example {"rows", 128}
  const char* name;
  Index layer;                                         // -1: no layer
  std::chrono::steady_clock::time_point begin, end{};  // end is zero while the span is open
  std::array<Number, 4> numbers{};                     // unused entries have a nullptr name
};

// The oldest collective in flight on the device that the host knows of.
struct DeviceCollective {
  const char* name = nullptr;  // "an all-to-all"; nullptr if no collective is in flight
  const char* peers = "";      // "with ranks 0, 2-5"
  RowsMoved rows;
  Phase phase;
};

// Settings of the check of fingerprints (dist/fingerprints.h).
struct FingerprintCheck {
  bool enabled = false;  // equal on all ranks
  int rank = 0;          // rank of this process in the world
};

// Shared memory of this rank and other ranks of its machine (dist/shared_memory_transport.h).
struct SharedMemory {
  int ranks = 1;        // number of ranks that share the window, including this one
  Index bytes = 0;      // size of the window
  std::string missing;  // reason if several ranks have no window; otherwise empty
};

// State of one rank. The thread that computes owns it. Other threads may read its atomic members
// and what BlockState, PhaseState and Seqlock publish.
struct RankContext {
  RankContext() = default;
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  BlockState blocked;                           // wait for other ranks or for the device
  PhaseState phase;                             // current phase, and step
  Seqlock<DeviceCollective> device_collective;  // collective on the device
  std::atomic<int> unlimited_local_work{0};     // number of open UnlimitedLocalWork scopes
  FileActivity& files = file_activity();
  // Spans of the traced steps, in order of begin. nullptr if no step is traced.
  std::vector<TraceSpan>* trace_spans = nullptr;
  // Sums of the times of training steps. nullptr outside of them.
  StepTimes* step_times = nullptr;
  FingerprintCheck fingerprints;  // set by Runtime
  SharedMemory shared_memory;     // set by Runtime
};

// Returns the wait state of a context, which it keeps alive: for a device (kernels/device.h).
inline std::shared_ptr<BlockState> block_state(const std::shared_ptr<RankContext>& context) {
  return {context, &context->blocked};
}

}  // namespace sy
