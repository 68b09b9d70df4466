// The trace of a run's steps: RUN/trace/rank-NNNN.json, in the Chrome trace format that Perfetto and chrome://tracing open.
#pragma once

#include <filesystem>

#include "dist/activity.h"
#include "dist/comm.h"

namespace sy {

// Records what every rank does in steps [first, first + steps) of a run, dist/activity.h. first = 0: nothing. Times begin at a
// barrier, so that those of different ranks can be compared as far as all leave a barrier together.
class StepTrace {
 public:
  StepTrace(Comm& world, std::filesystem::path folder, Index first, Index steps);
  ~StepTrace() { stop(); }
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Before a step. Collective where a step is traced.
  void before(Index step);
  // Writes what was recorded, once the last of the steps is done, or where `ended`: the run is. Collective as before. Throws
  // AgreedError.
  void after(Index step, bool ended = false);

 private:
  void stop() {
    if (trace == &spans_) trace = nullptr;
  }

  Comm& world_;
  std::filesystem::path folder_;
  Index first_, last_;
  std::vector<TraceSpan> spans_;
  std::chrono::steady_clock::time_point zero_{};
  bool recording_ = false;
};

// The spans as the text of such a file, times in microseconds after `zero`. process: the number and the name of the row.
std::string trace_text(const std::vector<TraceSpan>& spans, std::chrono::steady_clock::time_point zero, int process);

}  // namespace sy
