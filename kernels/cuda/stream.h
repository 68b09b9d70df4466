// The compute stream of a backend, and CUDA graphs of its graph regions.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cuda/handles.h"
#include "kernels/waiting.h"

namespace sy::cuda {

// Publishes an enqueue as a possible wait. It returns at once unless the device's queue is full. A
// collective that waits for a lost rank keeps the queue full forever.
struct Giving {
  Waiting waiting{"room in the device's queue", "", {}, true};
};

// Kernels, GEMMs and device copies reach the stream through put(). A pass is one call of
// repeated(). The second pass of a name records its operations as segments, each of which is a CUDA
// graph. Later passes replay them: the host executes the same code, but launches one graph for each
// segment. Operations that a graph cannot hold, such as an event or a copy to the host, use the
// stream that cut() returns. cut() ends a segment.
class ComputeStream {
 public:
  ComputeStream(cudaStream_t stream = nullptr) : stream_(stream) {}
  // Ends and launches the open segment, if there is one. Returns the stream, which then has all
  // enqueued work.
  cudaStream_t cut();

  // Enqueues one operation by issue(cudaStream_t). `parts` identify the operation: a kernel and its
  // arguments, for example. A replay compares them with the recorded ones bit by bit.
  template <class Issue, class... Parts>
  void put(Issue issue, const Parts&... parts) {
    const Giving giving;
    if (!pass_) return issue(stream_);
    operation_.clear();
    (note(parts), ...);
    if (to_issue()) issue(stream_);
  }

  // Calls body. In every pass of one name, body must put the same operations with the same
  // arguments, otherwise Failure is thrown. The first pass is not recorded, because libraries and
  // drivers initialise themselves in it.
  void repeated(const std::string& name, const std::function<void()>& body);

 private:
  using Words = std::vector<std::uint64_t>;
  // The operations between two cuts.
  struct Piece {
    Words operations;
    Owned<cudaGraphExec_t> graph;
  };
  struct Pass {
    std::string name;
    bool recorded = false;
    std::vector<Piece> pieces;
  };

  // Appends the bytes of a value of any trivially copyable type. Padding bytes count as zeros.
  template <class T>
  void note(const T& part) {
    static_assert(std::is_trivially_copyable_v<T>, "the bytes of this part are not all of it");
    T copy = part;
    __builtin_clear_padding(&copy);
    const std::size_t at = operation_.size();
    operation_.resize(at + (sizeof(T) + 7) / 8);
    std::memcpy(&operation_[at], &copy, sizeof(T));
  }
  bool to_issue();
  void begin_recording();
  void end_recording();
  void replay();
  [[noreturn]] void differs() const;

  cudaStream_t stream_;
  std::map<std::string, Pass> passes_;
  Pass* pass_ = nullptr;      // the current pass if it is recorded or replayed, otherwise nullptr
  bool open_ = false;         // true: its last segment is being recorded
  std::size_t piece_ = 0;     // index of the segment that is being replayed
  std::size_t compared_ = 0;  // number of its words that have been compared
  Words operation_;
};

}  // namespace sy::cuda
