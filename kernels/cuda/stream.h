// The stream that a backend computes on, and CUDA graphs of what it computes again and again.
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

// Something is given to the device, which takes it at once unless its queue is full. The queue is full for ever where a
// collective on it waits for a rank that is lost.
struct Giving {
  Waiting waiting{"room in the device's queue", "", {}, true};
};

// Kernels, products and copies on the device reach the stream through put(). A pass is what happens within repeated().
// In the second pass of a name these operations are recorded, as pieces that are a CUDA graph each, and from the third
// pass on they are replayed: the host goes through the same operations, but launches one graph for each piece. What
// cannot be in a graph, such as an event or a copy to the host, takes the stream from cut(), which ends a piece.
class ComputeStream {
 public:
  ComputeStream(cudaStream_t stream = nullptr) : stream_(stream) {}
  // Ends the piece under way, if there is one, and launches it. Returns the stream, which then has all that was put.
  cudaStream_t cut();

  // issue(cudaStream_t) puts one operation on the stream. parts are all that identifies the operation, such as a kernel and
  // its arguments. While a pass is replayed they are compared with those that were recorded, bit by bit.
  template <class Issue, class... Parts>
  void put(Issue issue, const Parts&... parts) {
    const Giving giving;
    if (!pass_) return issue(stream_);
    operation_.clear();
    (note(parts), ...);
    if (to_issue()) issue(stream_);
  }

  // Calls body. It must put the same operations here, with the same arguments, in every pass of one name, or Failure is
  // thrown. The first pass is not recorded, as libraries and drivers prepare themselves in it.
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

  // Notes the bytes of a part, whatever its members are. Those between members have no value, and count as zeros.
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
  Pass* pass_ = nullptr;      // the pass under way, if it is recorded or replayed
  bool open_ = false;         // whether its last piece is being recorded
  std::size_t piece_ = 0;     // the piece that is being replayed,
  std::size_t compared_ = 0;  // and how many of its words have been compared
  Words operation_;
};

}  // namespace sy::cuda
