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

// The decay covers the last 40 of 100 steps, from 1 to 0.2. After a quarter of it, 1 - sqrt is half
// done, and the cosine has done (1 - cos(pi / 4)) / 2.
TEST(LearningRate, DecaysOverTheLastStepsInEachShape) {
  Config::Train t;
  t.schedule = Schedule::wsd;
  t.steps = 100;
  t.warmup = 10;
  t.lr = 1;
  t.min_lr = 0.2;
  t.decay_steps = 40;
  struct Expected {
    DecayShape shape;
    double quarter, half;
  };
  for (const Expected& e : {Expected{DecayShape::linear, 0.8, 0.6},
                            {DecayShape::cosine, 0.2 + 0.8 * 0.8535533905932737, 0.6},
                            {DecayShape::one_minus_sqrt, 0.6, 0.2 + 0.8 * 0.2928932188134524}}) {
    t.decay_shape = e.shape;
    EXPECT_DOUBLE_EQ(learning_rate(t, 5), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(t, 60), 1);
    EXPECT_NEAR(learning_rate(t, 70), e.quarter, 1e-12);
    EXPECT_NEAR(learning_rate(t, 80), e.half, 1e-12);
    EXPECT_NEAR(learning_rate(t, 100), 0.2, 1e-12);
  }
  // A decay that is longer than the rest begins at the end of the warm-up.
  t.decay_steps = 1000;
  t.decay_shape = DecayShape::linear;
  EXPECT_DOUBLE_EQ(learning_rate(t, 10), 1);
  EXPECT_NEAR(learning_rate(t, 55), 0.6, 1e-12);
}

TEST(LearningRate, RisesAgainAfterAResumption) {
  Config::Train t;
  t.schedule = Schedule::linear;
  t.steps = 100;
  t.warmup = 0;
  t.lr = 1;
  t.min_lr = 0;
  t.rewarmup = 4;
  EXPECT_DOUBLE_EQ(learning_rate(t, 41), 0.59);
  EXPECT_DOUBLE_EQ(learning_rate(t, 41, 40), 0.59 / 4);
  EXPECT_DOUBLE_EQ(learning_rate(t, 43, 40), 0.57 * 3 / 4);
  EXPECT_DOUBLE_EQ(learning_rate(t, 44, 40), 0.56);
  EXPECT_DOUBLE_EQ(learning_rate(t, 60, 40), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(t, 1, 0), 0.99 / 4);
}

}  // namespace
}  // namespace sy
