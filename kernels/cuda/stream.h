// The compute stream of a device, and CUDA graphs of its graph regions.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/blocked_on.h"
#include "kernels/cuda/handles.h"

namespace sy::cuda {

// Publishes an enqueue as a possible wait. An enqueue returns at once unless the device's queue is
// full. A collective that waits for a lost rank keeps the queue full forever.
struct EnqueueScope {
  explicit EnqueueScope(BlockState& blocked) : block(blocked, "space in the device's queue", "", {}, true) {}
  ScopedBlock block;
};

// Kernels, GEMMs and device copies reach the stream through enqueue(). The second call of
// graph_region() with a name records the operations as segments, each of which is a CUDA graph.
// Later calls replay them: the host executes the same code, but launches one graph for each
// segment. Operations that a graph cannot hold use enqueue_outside_graphs(), which ends a segment.
class ComputeStream {
 public:
  ComputeStream(cudaStream_t stream = nullptr) : stream_(stream) {}
  // State that the host's waits for the device are published to. By default the stream owns it.
  BlockState& blocked() const { return *blocked_; }
  void publish_waits_to(std::shared_ptr<BlockState> state) { blocked_ = std::move(state); }
  // Ends and launches the open segment, if there is one. Returns the stream, which then has all
  // enqueued work. Throws Failure if a replay differs.
  cudaStream_t end_capture();

  // Enqueues one operation by issue(cudaStream_t). `key` identifies the operation: a kernel and its
  // arguments, for example. A replay compares it with the recorded key bit by bit.
  template <class Issue, class... Key>
  void enqueue(Issue issue, const Key&... key) {
    const EnqueueScope enqueue_scope(*blocked_);
    if (!region_) {
      issue(stream_);
      if (++since_mark_ >= operations_per_mark) mark();
      return;
    }
    operation_key_.clear();
    (append_to_key(key), ...);
    if (must_issue()) issue(stream_);
  }

  // Ends the open segment, and enqueues operations that a graph cannot hold by issue(cudaStream_t).
  // These are events, copies to and from the host, and operations whose sizes differ from call to
  // call.
  template <class Issue>
  void enqueue_outside_graphs(Issue issue) {
    const EnqueueScope enqueue_scope(*blocked_);
    issue(end_capture());
    if (++since_mark_ >= operations_per_mark) mark();
  }

  // Calls body. In every call with one name, body must enqueue() the same operations with the same
  // keys. Throws Failure if a replay differs from the record; the next call is then a first one.
  // The first call is not recorded, because libraries and drivers initialise themselves in it.
  // Regions must not be nested.
  void graph_region(const std::string& name, const std::function<void()>& body);

  // Returns whether the device has completed marked work since the last call. Throws Failure if the
  // device failed. Marks follow every 64 operations and every graph. A host that waits for the
  // device calls it, as a sign of progress.
  bool has_progressed();

  // Waits on the host for an event: makes every wait of the host. It polls and does not block, so
  // that it can publish progress and call a hook meanwhile.
  void wait(cudaEvent_t event);
  // Called repeatedly by wait(), once a wait has lasted some milliseconds. It may throw, which ends
  // the wait. An empty hook is not called.
  std::function<void()> wait_hook;

 private:
  using OperationKey = std::vector<std::uint64_t>;
  // The operations between two calls of end_capture().
  struct Segment {
    OperationKey key;  // of all its operations
    Owned<cudaGraphExec_t> graph;
  };
  struct GraphRegion {
    std::string name;
    bool recorded = false;
    std::vector<Segment> segments;
  };

  // Appends the bytes of a value of any trivially copyable type. Padding bytes count as zeros.
  template <class T>
  void append_to_key(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>, "the bytes of this value are not all of it");
    T copy = value;
    __builtin_clear_padding(&copy);
    const std::size_t at = operation_key_.size();
    operation_key_.resize(at + (sizeof(T) + 7) / 8);
    std::memcpy(&operation_key_[at], &copy, sizeof(T));
  }
  bool must_issue();
  [[noreturn]] void throw_mismatch() const;
  void mark();

  cudaStream_t stream_;
  std::shared_ptr<BlockState> blocked_ = std::make_shared<BlockState>();
  std::map<std::string, GraphRegion> regions_;
  GraphRegion* region_ = nullptr;  // the current region if it is recorded or replayed
  bool capturing_ = false;         // true: its last segment is being recorded
  std::size_t segment_ = 0;        // index of the segment that is being replayed
  std::size_t matched_ = 0;        // number of words of its key that have been compared
  OperationKey operation_key_;
  // A ring of events behind marked work. If it is full, the oldest mark is forgotten.
  static constexpr int operations_per_mark = 64;
  std::array<Owned<cudaEvent_t>, 32> marks_;
  std::size_t marked_ = 0, completed_ = 0;  // numbers of marks so far
  int since_mark_ = 0;                      // operations since the latest one
};

}  // namespace sy::cuda
