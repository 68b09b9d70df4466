#include <gtest/gtest.h>

#include "src/train/stop.h"
#include "src/train/time_limit.h"

namespace sy {
namespace {

TEST(TimeLimit, NoneIsUnlimited) {
  TimeLimit limit(0);
  limit.add_step(1e9);
  EXPECT_FALSE(limit.must_stop(1e9));
}

TEST(TimeLimit, ReservesTheLongestStepAndSave) {
  TimeLimit limit(1);  // 3600 s, of which 72 s are always reserved
  EXPECT_FALSE(limit.must_stop(3527));
  EXPECT_TRUE(limit.must_stop(3528));
  limit.add_step(50);
  limit.add_step(10);
  EXPECT_FALSE(limit.must_stop(3427));
  EXPECT_TRUE(limit.must_stop(3428));
  limit.add_save(100);
  EXPECT_FALSE(limit.must_stop(3227));
  EXPECT_TRUE(limit.must_stop(3228));
}

TEST(TimeLimit, ProgramSecondsRise) {
  const double before = program_seconds();
  EXPECT_GT(before, 0);
  EXPECT_GE(program_seconds(), before);
}

}  // namespace
}  // namespace sy
