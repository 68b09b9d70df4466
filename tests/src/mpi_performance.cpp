// The speed of a training, gathered from all ranks.
#include <gtest/gtest.h>

#include "dist/rank_context.h"
#include "src/train/performance.h"
#include "tests/mpi_world.h"

namespace sy {
namespace {

// Adds times to sections of the current step: `data` takes 1 + rank ms, and `dispatch` 4 ms, of
// which 3 ms are in collectives.
void add_times(RankContext& context, int rank) {
  using std::chrono::milliseconds;
  StepTimes& times = *context.step_times;
  StepTimes::Clock::time_point now{};
  times.begin("step", now);
  times.begin("data", now);
  times.end(now += milliseconds(1 + rank));
  times.begin("dispatch", now);
  times.add_collective(milliseconds(3));
  times.end(now += milliseconds(4));
  times.end(now);
}

TEST(Performance, IsGatheredFromAllRanks) {
  Comm& world = test::world();
  const int ranks = world.size(), rank = world.rank();
  PerformanceMeter meter(world, 5e9, {.machine = "here", .device = "cpu", .flops = 2e12, .of_node = true});
  for (Index step = 11; step <= 13; ++step) {
    meter.begin_step();
    add_times(world.rank_context(), rank);
    if (step == 11) add_times(world.rank_context(), rank);  // the warm-up takes longer
    StepMetrics m;
    m.step = step;
    m.step_seconds = step == 11 ? 10 : 2;
    m.tokens_per_second = 100 / m.step_seconds;
    meter.end_step(m);
    EXPECT_EQ(world.rank_context().step_times, nullptr);
    EXPECT_DOUBLE_EQ(m.tflops_per_second_per_rank, m.tokens_per_second * 5e9 / 1e12 / ranks);
    EXPECT_DOUBLE_EQ(*m.mfu, m.tokens_per_second * 5e9 / 2e12);  // one node
  }
  const auto p = meter.gather({.host = 1000 + rank, .device = 500 - rank});
  ASSERT_EQ(p.has_value(), rank == 0);
  if (!p) return;
  EXPECT_EQ(p->first_step, 12);
  EXPECT_EQ(p->last_step, 13);
  EXPECT_EQ(p->step_seconds, 2);
  EXPECT_EQ(p->tokens_per_second, 50);
  EXPECT_EQ(p->ranks, ranks);
  EXPECT_EQ(p->nodes, 1);
  EXPECT_DOUBLE_EQ(p->tflops_per_second_per_rank, 0.25 / ranks);
  EXPECT_DOUBLE_EQ(*p->mfu, 0.125);
  EXPECT_EQ(p->memory.host, 1000 + ranks - 1);
  EXPECT_EQ(p->memory.device, 500);
  ASSERT_EQ(p->sections.size(), 3u);
  const auto expect_section = [](const SectionTime& section, const char* name, double min, double mean, double max,
                                 double collectives) {
    EXPECT_EQ(section.name, name);
    EXPECT_NEAR(section.min, min, 1e-12) << name;
    EXPECT_NEAR(section.mean, mean, 1e-12) << name;
    EXPECT_NEAR(section.max, max, 1e-12) << name;
    EXPECT_NEAR(section.collectives, collectives, 1e-12) << name;
  };
  const double mean = (ranks + 1) / 2.0 * 1e-3, most = ranks * 1e-3;
  expect_section(p->sections[0], "data", 1e-3, mean, most, 0);
  expect_section(p->sections[1], "dispatch", 4e-3, 4e-3, 4e-3, 3e-3);
  expect_section(p->sections[2], "all", 5e-3, 4e-3 + mean, 4e-3 + most, 3e-3);
}

TEST(Performance, CountsASingleStep) {
  Comm& world = test::world();
  PerformanceMeter none(world, 1, {});
  EXPECT_FALSE(none.gather({}).has_value());
  PerformanceMeter meter(world, 6e9, {.machine = "gpu", .device = "cuda", .flops = 1e12});
  meter.begin_step();
  StepMetrics m;
  m.step = 1;
  m.step_seconds = 0.5;
  m.tokens_per_second = 40;
  meter.end_step(m);
  EXPECT_DOUBLE_EQ(*m.mfu, 40 * 6e9 / (1e12 * world.size()));  // each rank has its own peak
  const auto p = meter.gather({});
  if (!p) return;
  EXPECT_EQ(p->first_step, 1);
  EXPECT_EQ(p->last_step, 1);
  EXPECT_EQ(p->tokens_per_second, 40);
  ASSERT_EQ(p->sections.size(), 1u);
  EXPECT_EQ(p->sections[0].mean, 0);
}

}  // namespace
}  // namespace sy
