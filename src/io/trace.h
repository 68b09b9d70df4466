// Trace of a run's steps: RUN/trace/rank-NNNN.json, in the Chrome trace format. Perfetto and
// chrome://tracing open it.
#pragma once

#include <filesystem>

#include "dist/comm.h"
#include "dist/phase.h"
#include "src/text/json.h"

namespace sy {

// Records the phases of every rank (dist/phase.h) in steps [first, first + steps) of a run. If
// first = 0, it records nothing. Times start at a barrier. Times of different ranks are comparable
// if all ranks leave the barrier together.
class StepTrace {
 public:
  // provenance: record of this call, for the files; may be null.
  StepTrace(Comm& world, std::filesystem::path folder, Index first, Index steps, Json provenance = {});
  ~StepTrace() { stop(); }
  StepTrace(const StepTrace&) = delete;

  // Call before each step. Collective if the step is traced.
  void begin_step(Index step);
  // Call after each step, with ended = true if the run ends. Writes the trace after its last step
  // or at the end of the run. Collective if the step was traced. Throws CollectiveError.
  void end_step(Index step, bool ended = false);

 private:
  void stop() {
    auto& traced = world_.rank_context().trace_spans;
    if (traced == &spans_) traced = nullptr;
  }

  Comm& world_;
  std::filesystem::path folder_;
  Index first_, last_;
  Json provenance_;
  std::vector<TraceSpan> spans_;
  std::chrono::steady_clock::time_point zero_{};
  bool recording_ = false;
};

// Returns the spans in the trace format, with times in microseconds since `zero`. `process` is the
// number of the rank, which names its row. `provenance` becomes the member "otherData", which
// viewers show as metadata. It is left out if it is null.
std::string trace_text(const std::vector<TraceSpan>& spans, std::chrono::steady_clock::time_point zero, int process,
                       const Json& provenance = {});

}  // namespace sy
