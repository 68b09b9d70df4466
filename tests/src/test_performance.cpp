// The texts of the speed of a training, and its metrics.
#include "src/train/performance.h"

#include <gtest/gtest.h>

#include <vector>

namespace sy {
namespace {

Performance example() {
  Performance p;
  p.first_step = 2;
  p.last_step = 120;
  p.step_seconds = 0.0331234;
  p.tokens_per_second = 179100.04;
  p.tflops_per_second_per_rank = 0.0461234;
  p.ranks = 4;
  p.nodes = 2;
  p.memory = {.host = 544'000'000, .device = 0};
  p.sections = {{"data", 0.001, 0.002, 0.0030, 0.0015}, {"all", 0.033, 0.0332, 0.0334, 0.0015}};
  return p;
}

TEST(Performance, IsDescribed) {
  Performance p = example();
  EXPECT_EQ(performance_text(p, "", "give run.machine", 1.5, 0.25),
            "section of a step  min ms  average ms  max ms    share  collectives ms\n"
            "─────────────────  ──────  ──────────  ──────  ───────  ──────────────\n"
            "data                 1.00        2.00    3.00    6.0 %            1.50\n"
            "all                 33.00       33.20   33.40  100.0 %            1.50\n"
            "time      33.1 ms a step, mean of steps 2 to 120; in all, 1.50 s of validation and 250 ms of checkpoints\n"
            "memory    544.0 MB of a rank at most\n"
            "speed     179.1k tokens/s, 44.8k per rank, 89.6k per node; 0.04612 TFLOP/s per rank\n"
            "MFU       unknown: give run.machine");
  p.mfu = 0.4321;
  p.memory.device = 70'000'000'000;
  const std::string text = performance_text(p, "h100", "", 0, 0);
  EXPECT_NE(text.find("memory    544.0 MB of a rank at most, and 70000.0 MB of its GPU\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nMFU       43.2 % of the peak of h100"), std::string::npos) << text;
}

TEST(Performance, HasAStableLine) {
  Performance p = example();
  EXPECT_EQ(performance_line(p),
            "performance: tokens_per_second=179100.0 tokens_per_second_per_rank=44775.0 "
            "tokens_per_second_per_node=89550.0 tflops_per_second_per_rank=0.046123 mfu=unknown step_seconds=0.033123 "
            "steps=119 ranks=4 nodes=2 host_memory_bytes=544000000 device_memory_bytes=0");
  p.mfu = 0.00004;
  p.tflops_per_second_per_rank = 4e-9;  // no exponents
  p.tokens_per_second = 4e9;
  EXPECT_NE(performance_line(p).find("=4000000000.0 "), std::string::npos);
  EXPECT_NE(performance_line(p).find("tflops_per_second_per_rank=0.000000 mfu=0.0000 "), std::string::npos);
}

TEST(Performance, SaysWhyMfuIsUnknown) {
  const auto problem = [](MachinePeak peak, DType dtype = DType::f32) { return mfu_problem(peak, "cpu", dtype); };
  EXPECT_EQ(problem({}), "give run.machine or measure one: launch/mpirun.sh 2 switchyard doctor --machine FILE");
  EXPECT_EQ(problem({"h100", "cuda", 1e12}), "run.machine = h100 has the speed of cuda, and this run computes on cpu");
  EXPECT_EQ(problem({"here", "cpu", 0}), "run.machine = here has no compute.peak_f32");
  EXPECT_EQ(problem({"here", "cpu", 0}, DType::bf16), "run.machine = here has no compute.peak_bf16");
  EXPECT_EQ(problem({"here", "cpu", 1e9}), "");
}

TEST(Performance, KnowsThePeakOfResidentMemory) {
  const Index before = resident_memory_peak();
  ASSERT_GT(before, 0);
  {
    std::vector<char> large(256u << 20, 1);
    EXPECT_EQ(large[1000], 1);
  }
  const Index after = resident_memory_peak();
  EXPECT_GE(after, Index{256} << 20);
  EXPECT_LT(after - before, Index{300} << 20);
}

}  // namespace
}  // namespace sy
