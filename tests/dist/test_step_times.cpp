// Sums of the host time of each section of a step.
#include "dist/step_times.h"

#include <gtest/gtest.h>

#include <string>

#include "dist/comm.h"
#include "dist/phase.h"

namespace sy {
namespace {

using namespace std::chrono_literals;
using Clock = StepTimes::Clock;

// A clock that a test sets.
Clock::time_point at(int milliseconds) {
  return Clock::time_point{} + std::chrono::milliseconds(milliseconds);
}

TEST(StepTimes, AreThoseOfTheInnermostSection) {
  StepTimes times;
  for (int begin : {0, 1000}) {  // two steps, and a pause between them
    times.begin("step", at(begin));
    times.begin("data", at(begin + 1));
    times.end(at(begin + 4));
    times.begin("forward pass", at(begin + 4));  // has no section
    times.begin("dispatch", at(begin + 10));
    times.begin("shared experts", at(begin + 12));
    times.end(at(begin + 20));
    times.begin("all-to-all", at(begin + 20));  // belongs to dispatch
    times.end(at(begin + 21));
    times.add_collective(1ms);
    times.end(at(begin + 25));
    times.end(at(begin + 30));
    times.begin("gradient of the embedding", at(begin + 30));
    times.end(at(begin + 32));
    times.end(at(begin + 33));
  }
  EXPECT_EQ(times[StepSection::data].all, 2 * 3ms);
  EXPECT_EQ(times[StepSection::dispatch].all, 2 * (2 + 1 + 4) * 1ms);
  EXPECT_EQ(times[StepSection::dispatch].collectives, 2 * 1ms);
  EXPECT_EQ(times[StepSection::shared_experts].all, 2 * 8ms);
  EXPECT_EQ(times[StepSection::shared_experts].collectives, 0ms);
  EXPECT_EQ(times[StepSection::embedding].all, 2 * 2ms);
  EXPECT_EQ(times[StepSection::other].all, 2 * (1 + 6 + 5 + 1) * 1ms);
  Clock::duration sum{};
  for (int p = 0; p < num_step_sections; ++p) sum += times[static_cast<StepSection>(p)].all;
  EXPECT_EQ(sum, 2 * 33ms);
  times.add_collective(5ms);  // outside of spans
  EXPECT_EQ(times[StepSection::other].collectives, 0ms);
  times.clear();
  EXPECT_EQ(times[StepSection::data].all, 0ms);
}

// The same name may be at several addresses.
TEST(StepTimes, FindSectionsByText) {
  StepTimes times;
  const std::string one = "experts", other = "experts", unknown = "a span";
  for (const std::string* name : {&one, &other, &one, &unknown}) {
    times.begin(name->c_str(), at(0));
    times.end(at(1));
  }
  EXPECT_EQ(times[StepSection::experts].all, 3ms);
  EXPECT_EQ(times[StepSection::other].all, 1ms);
}

TEST(StepTimes, SectionsHaveTheNamesOfSpans) {
  EXPECT_EQ(name_of(StepSection::output), "output and loss");
  EXPECT_EQ(name_of(StepSection::optimizer), "optimizer");
  EXPECT_EQ(name_of(StepSection::other), "other");
  for (int p = 0; p + 1 < num_step_sections; ++p) EXPECT_NE(name_of(static_cast<StepSection>(p)), "other") << p;
}

TEST(StepTimes, ComeFromScopesAndCollectives) {
  const auto context = std::make_shared<RankContext>();
  const auto comm = make_comm_dry(2, 0, false, context);
  double x = 0;
  const auto step = [&] {
    const TraceScope whole(*context, "step");
    TraceScope scope(*context, "gradients");
    comm->all_reduce(view_of(&x, {1}));
    scope.next("optimizer");
  };
  step();  // nothing is measured
  StepTimes times;
  context->step_times = &times;
  step();
  context->step_times = nullptr;
  step();
  EXPECT_GT(times[StepSection::gradients].all, 0ns);
  EXPECT_GT(times[StepSection::gradients].collectives, 0ns);
  EXPECT_LE(times[StepSection::gradients].collectives, times[StepSection::gradients].all);
  EXPECT_EQ(times[StepSection::optimizer].collectives, 0ns);
  const auto before = times[StepSection::gradients].all;
  std::vector<TraceSpan> spans;
  context->trace_spans = &spans;  // a traced collective adds a span, and no section
  context->step_times = &times;
  step();
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_STREQ(spans[2].name, "all-reduce");
  EXPECT_GT(times[StepSection::gradients].all, before);
  context->trace_spans = nullptr;
  context->step_times = nullptr;
}

}  // namespace
}  // namespace sy
