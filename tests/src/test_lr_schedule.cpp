#include <gtest/gtest.h>

#include "src/train/lr_schedule.h"

namespace sy {
namespace {

TEST(LearningRate, EndsAtMinLrForAnyNumberOfSteps) {
  for (const Schedule kind : {Schedule::cosine, Schedule::linear, Schedule::wsd})
    for (const Index steps : {2, 5, 9, 10, 11, 99}) {
      Config::Train t;
      t.schedule = kind;
      t.steps = steps;
      t.warmup = 1;
      t.lr = 1;
      t.min_lr = 0.1;
      EXPECT_NEAR(learning_rate(t, steps), 0.1, 1e-12) << steps;
    }
}

TEST(LearningRate, AllowsNoWarmUpOrOnlyWarmUp) {
  Config::Train t;
  t.steps = 4;
  t.lr = 1;
  t.min_lr = 0;
  t.schedule = Schedule::linear;
  t.warmup = 0;
  EXPECT_DOUBLE_EQ(learning_rate(t, 1), 0.75);
  t.warmup = 8;
  EXPECT_DOUBLE_EQ(learning_rate(t, 4), 0.5);
}

}  // namespace
}  // namespace sy
