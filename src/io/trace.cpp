#include "src/io/trace.h"

#include "dist/runtime.h"
#include "src/system/files.h"

namespace sy {

StepTrace::StepTrace(Comm& world, std::filesystem::path folder, Index first, Index steps, Json provenance)
    : world_(world),
      folder_(std::move(folder)),
      first_(first),
      last_(first > 0 ? first + steps - 1 : 0),
      provenance_(std::move(provenance)) {}

void StepTrace::begin_step(Index step) {
  if (recording_ || step < first_ || step > last_) return;
  agree_on_errors(world_, [&] {
    if (world_.rank() == 0) make_folders(folder_);
  });
  world_.barrier();
  recording_ = true;
  zero_ = std::chrono::steady_clock::now();
  world_.rank_context().trace_spans = &spans_;
}

void StepTrace::end_step(Index step, bool ended) {
  if (!recording_ || (step < last_ && !ended)) return;
  recording_ = false;
  stop();
  agree_on_errors(world_, [&] {
    write_file(folder_ / fmt::format("rank-{:04}.json", world_.rank()),
               trace_text(spans_, zero_, world_.rank(), provenance_));
  });
  spans_.clear();
}

std::string trace_text(const std::vector<TraceSpan>& spans, std::chrono::steady_clock::time_point zero, int process,
                       const Json& provenance) {
  const auto microseconds = [](auto duration) { return std::chrono::duration<double, std::micro>(duration).count(); };
  Json events = Json::array();
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", process},
                    {"args", Json{{"name", fmt::format("rank {}", process)}}}});
  for (const TraceSpan& span : spans) {
    if (span.end < span.begin) continue;
    Json numbers = Json::object();
    if (span.layer >= 0) numbers["layer"] = span.layer;
    for (const auto& [name, value] : span.numbers)
      if (name) numbers[name] = value;
    events.push_back({{"name", span.name},
                      {"ph", "X"},
                      {"pid", process},
                      {"tid", 0},
                      {"ts", microseconds(span.begin - zero)},
                      {"dur", microseconds(span.end - span.begin)},
                      {"args", numbers}});
  }
  Json trace{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  if (!provenance.is_null()) trace.append("otherData", provenance);
  return json_text(trace, -1);
}

}  // namespace sy
