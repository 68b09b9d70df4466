// The stream that a backend computes on, and the CUDA graphs of what it computes again and again.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/cuda/handles.h"

namespace sy::cuda {

// Kernels, products and copies on the device reach the stream through put(). Within repeated() they are recorded the second
// time and replayed from then on: the host goes through the same operations, but each piece between two cuts is one launch of
// a graph. Whatever else uses the stream (an event, a copy from or to the host) cannot be in a graph. It takes this object
// for a cudaStream_t, which makes the cut: the stream then has all that was put there before.
class ComputeStream {
 public:
  ComputeStream(cudaStream_t stream = nullptr) : stream_(stream) {}
  operator cudaStream_t() {
    cut();
    return stream_;
  }
  void cut();

  // issue(cudaStream_t) puts one operation on the stream. parts: what makes it the operation that it is, such as a kernel and
  // its arguments; while a pass is replayed they are compared with those recorded.
  template <class Issue, class... Parts>
  void put(Issue issue, const Parts&... parts) {
    if (!pass_) return issue(stream_);
    operation_.clear();
    (note(parts), ...);
    if (to_issue()) issue(stream_);
  }

  // Calls body. The operations that it puts here are the same, with the same arguments, in every pass of that name: otherwise
  // Failure. The first is not recorded: libraries and drivers prepare themselves.
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

  // A part without padding, whose bytes are its value. Others are passed over, among them what element-wise kernels do to
  // each element.
  template <class T>
  void note(const T& part) {
    if constexpr (std::is_scalar_v<T> || std::has_unique_object_representations_v<T>) {
      const std::size_t at = operation_.size();
      operation_.resize(at + (sizeof(T) + 7) / 8);
      std::memcpy(&operation_[at], &part, sizeof(T));
    }
  }
  bool to_issue();
  void begin_recording();
  void end_recording();
  void replay();
  [[noreturn]] void differs() const;

  cudaStream_t stream_;
  std::map<std::string, Pass> passes_;
  Pass* pass_ = nullptr;   // the one under way, if it is recorded or replayed
  bool open_ = false;      // the last piece is being recorded
  std::size_t piece_ = 0;  // that is replayed, and how much of it was compared
  std::size_t compared_ = 0;
  Words operation_;
};

}  // namespace sy::cuda
