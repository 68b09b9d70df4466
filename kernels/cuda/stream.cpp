#include "kernels/cuda/stream.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace sy::cuda {
namespace {

bool is_done(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaSuccess) return true;
  if (state != cudaErrorNotReady) check(state, "waiting for the GPU");
  cudaGetLastError();  // a later call would report "not ready" as an error
  return false;
}

}  // namespace

void ComputeStream::graph_region(const std::string& name, const std::function<void()>& body) {
  SY_ASSERT(!region_, "the graph region '{}' within '{}'", name, region_->name);
  const auto [known, first] = regions_.try_emplace(name, GraphRegion{name, false, {}});
  if (first) return body();
  GraphRegion& region = known->second;
  region_ = &region;
  segment_ = matched_ = 0;
  try {
    body();
    end_capture();
    if (region.recorded && segment_ != region.segments.size()) throw_mismatch();
  } catch (...) {
    if (capturing_) {
      cudaGraph_t graph = nullptr;
      cudaStreamEndCapture(stream_, &graph);
      if (graph) cudaGraphDestroy(graph);
      cudaGetLastError();  // the first error is the one to report
    }
    capturing_ = false;
    matched_ = 0;
    region_ = nullptr;
    regions_.erase(name);
    throw;
  }
  region.recorded = true;
  region_ = nullptr;
}

bool ComputeStream::must_issue() {
  if (region_->recorded) {
    if (segment_ == region_->segments.size()) throw_mismatch();
    const OperationKey& recorded = region_->segments[segment_].key;
    if (operation_key_.size() > recorded.size() - matched_ ||
        !std::equal(operation_key_.begin(), operation_key_.end(),
                    recorded.begin() + static_cast<std::ptrdiff_t>(matched_)))
      throw_mismatch();
    matched_ += operation_key_.size();
    return false;
  }
  if (!capturing_) {
    // The relaxed mode does not restrict other streams and threads during the capture.
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    capturing_ = true;
    region_->segments.emplace_back();
  }
  OperationKey& key = region_->segments.back().key;
  key.insert(key.end(), operation_key_.begin(), operation_key_.end());
  return true;
}

cudaStream_t ComputeStream::end_capture() {
  const EnqueueScope enqueue_scope(*blocked_);
  if (capturing_) {
    capturing_ = false;
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    const Owned<cudaGraph_t> owned(graph);
    cudaGraphExec_t executable = nullptr;
    check(cudaGraphInstantiateWithFlags(&executable, graph, 0), "cudaGraphInstantiate");
    region_->segments.back().graph.reset(executable);
    check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    mark();
  } else if (matched_ > 0) {
    const Segment& segment = region_->segments[segment_];
    if (matched_ != segment.key.size()) throw_mismatch();
    check(cudaGraphLaunch(segment.graph.get(), stream_), "cudaGraphLaunch");
    mark();
    ++segment_;
    matched_ = 0;
  }
  return stream_;
}

void ComputeStream::wait(cudaEvent_t event) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds patience(20'000), nap(50);
  const auto start = Clock::now();
  const ScopedBlock block(*blocked_, "the device", "", {}, true);
  while (!is_done(event)) {
    if (Clock::now() - start < patience) {
      std::this_thread::yield();
      continue;
    }
    if (wait_hook) wait_hook();
    if (has_progressed()) blocked_->progress();
    std::this_thread::sleep_for(nap);
  }
}

void ComputeStream::mark() {
  since_mark_ = 0;
  if (marked_ - completed_ == marks_.size()) ++completed_;  // forgets the oldest mark
  Owned<cudaEvent_t>& event = marks_[marked_ % marks_.size()];
  if (!event) event = make_event();
  check(cudaEventRecord(event.get(), stream_), "cudaEventRecord");
  ++marked_;
}

bool ComputeStream::has_progressed() {
  const std::size_t before = completed_;
  while (completed_ < marked_ && is_done(marks_[completed_ % marks_.size()].get())) ++completed_;
  return completed_ != before;
}

void ComputeStream::throw_mismatch() const {
  fail(
      "the graph region '{}' differs from its recorded CUDA graphs: this is a mistake in switchyard; "
      "SWITCHYARD_GRAPHS=0 trains without them",
      region_->name);
}

}  // namespace sy::cuda
