#include "src/io/trace.h"

#include <gtest/gtest.h>

#include <map>

#include "src/system/files.h"
#include "src/text/json.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

void a_step(RankContext& rank) {
  const TraceScope step(rank, "step", {{"step", 7}});
  const ScopedPhase phase(rank, "forward pass", 2);
  TraceScope scope(rank, "route", {{"rows", 5}});
  scope.next("dispatch");
  scope.add({{"rows", 6}, {"bytes", 24}});
}

TEST(StepTrace, RecordsTheSpansOfItsSteps) {
  const TempFolder folder;
  const auto world = make_comm_self();
  const auto file = folder.path() / "trace" / "rank-0000.json";
  StepTrace traced(*world, folder.path() / "trace", 3, 2, {{"job", "7"}});
  for (Index step = 1; step <= 5; ++step) {
    traced.begin_step(step);
    EXPECT_EQ(world->rank_context().trace_spans != nullptr, step == 3 || step == 4);
    a_step(world->rank_context());
    traced.end_step(step);
    EXPECT_EQ(std::filesystem::exists(file), step >= 4);
  }
  const Json json = Json::parse(read_file(file));
  EXPECT_EQ(json["otherData"].dump(), R"({"job":"7"})");
  std::map<std::string, int> seen;
  double step_begin = 0, step_end = 0;
  for (const Json& event : json["traceEvents"]) {
    const std::string name = event["name"].get<std::string>();
    ++seen[name];
    EXPECT_EQ(event["pid"], 0);
    if (event["ph"].get<std::string>() == "M") continue;
    EXPECT_EQ(event["ph"].get<std::string>(), "X");
    const double begin = event["ts"].get<double>(), end = begin + event["dur"].get<double>();
    EXPECT_GE(end, begin);
    if (name == "step") {
      EXPECT_EQ(event["args"].dump(), R"({"step":7})");
      EXPECT_GE(begin, step_end);
      step_begin = begin, step_end = end;
    } else {
      EXPECT_GE(begin, step_begin);  // within the step, as viewers nest spans
      EXPECT_LE(end, step_end + 1e-3);
    }
    if (name == "route") {
      EXPECT_EQ(event["args"].dump(), R"({"layer":2,"rows":5})");
    }
    if (name == "dispatch") {
      EXPECT_EQ(event["args"].dump(), R"({"layer":2,"rows":6,"bytes":24})");
    }
  }
  EXPECT_EQ(seen, (std::map<std::string, int>{
                      {"process_name", 1}, {"step", 2}, {"forward pass", 2}, {"route", 2}, {"dispatch", 2}}));
}

TEST(StepTrace, IsWrittenIfTheRunEndsEarly) {
  const TempFolder folder;
  const auto world = make_comm_self();
  StepTrace traced(*world, folder.path(), 2, 10);
  traced.begin_step(3);  // resumed within the traced steps
  a_step(world->rank_context());
  traced.end_step(3, true);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "rank-0000.json"));
  EXPECT_EQ(world->rank_context().trace_spans, nullptr);
  traced.end_step(4, true);
  StepTrace none(*world, folder.path() / "none", 0, 10);
  none.begin_step(1);
  none.end_step(1, true);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "none"));
}

}  // namespace
}  // namespace sy
