#include "kernels/cuda/stream.h"

#include <algorithm>

namespace sy::cuda {

void ComputeStream::repeated(const std::string& name, const std::function<void()>& body) {
  SY_ASSERT(!pass_, "the pass '{}' within '{}'", name, pass_->name);
  const auto [known, first] = passes_.try_emplace(name, Pass{name, false, {}});
  if (first) return body();
  Pass& pass = known->second;
  pass_ = &pass;
  piece_ = compared_ = 0;
  try {
    body();
    cut();
    if (pass.recorded && piece_ != pass.pieces.size()) differs();
  } catch (...) {
    if (open_) {
      cudaGraph_t graph = nullptr;
      cudaStreamEndCapture(stream_, &graph);
      if (graph) cudaGraphDestroy(graph);
      cudaGetLastError();  // the first error is the one to report
    }
    open_ = false;
    compared_ = 0;
    pass_ = nullptr;
    passes_.erase(name);
    throw;
  }
  pass.recorded = true;
  pass_ = nullptr;
}

bool ComputeStream::to_issue() {
  if (pass_->recorded) {
    if (piece_ == pass_->pieces.size()) differs();
    const Words& recorded = pass_->pieces[piece_].operations;
    if (operation_.size() > recorded.size() - compared_ ||
        !std::equal(operation_.begin(), operation_.end(), recorded.begin() + static_cast<std::ptrdiff_t>(compared_)))
      differs();
    compared_ += operation_.size();
    return false;
  }
  if (!open_) begin_recording();
  Words& operations = pass_->pieces.back().operations;
  operations.insert(operations.end(), operation_.begin(), operation_.end());
  return true;
}

cudaStream_t ComputeStream::cut() {
  const Giving giving;
  if (open_)
    end_recording();
  else if (compared_ > 0)
    replay();
  return stream_;
}

// The relaxed mode does not restrict other streams and threads during the capture.
void ComputeStream::begin_recording() {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  open_ = true;
  pass_->pieces.emplace_back();
}

void ComputeStream::end_recording() {
  open_ = false;
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  const Owned<cudaGraph_t> owned(graph);
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiateWithFlags(&executable, graph, 0), "cudaGraphInstantiate");
  pass_->pieces.back().graph.reset(executable);
  check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
}

void ComputeStream::replay() {
  const Piece& piece = pass_->pieces[piece_];
  if (compared_ != piece.operations.size()) differs();
  check(cudaGraphLaunch(piece.graph.get(), stream_), "cudaGraphLaunch");
  ++piece_;
  compared_ = 0;
}

void ComputeStream::differs() const {
  fail(
      "the pass '{}' is not what it was when it was recorded as CUDA graphs: this is a mistake in switchyard; "
      "SWITCHYARD_GRAPHS=0 trains without them",
      pass_->name);
}

}  // namespace sy::cuda
