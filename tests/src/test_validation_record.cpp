#include "src/io/validation_record.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/src/checkpoint_fixture.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

using Entries = std::vector<ValidationRecord::Entry>;

TEST(ValidationRecord, KeepsTheLowestLosses) {
  ValidationRecord r;
  EXPECT_TRUE(r.empty());
  EXPECT_TRUE(r.add(10, 5, 2));
  EXPECT_TRUE(r.add(20, 4, 2));
  EXPECT_TRUE(r.add(30, 4.5, 2));
  EXPECT_EQ(r.best, (Entries{{20, 4}, {30, 4.5}}));
  EXPECT_FALSE(r.add(40, 4.5, 2));  // not lower than an earlier loss
  EXPECT_FALSE(r.add(50, NAN, 2));
  EXPECT_EQ(r.lowest, 4);
  EXPECT_EQ(r.lowest_step, 20);
  EXPECT_EQ(r.since_lowest, 3);
  EXPECT_TRUE(r.add(60, 3, 1));
  EXPECT_EQ(r.best, (Entries{{60, 3}}));
  EXPECT_EQ(r.since_lowest, 0);
  EXPECT_FALSE(r.add(70, 2, 0));
  EXPECT_TRUE(r.best.empty());
  EXPECT_EQ(r.lowest_step, 70);
}

TEST(ValidationRecord, IgnoresNonFiniteLosses) {
  ValidationRecord r;
  for (Index step : {1, 2, 3}) EXPECT_FALSE(r.add(step, step == 2 ? INFINITY : NAN, 3));
  EXPECT_EQ(r.since_lowest, 3);
  EXPECT_EQ(r.lowest_step, -1);
  EXPECT_FALSE(r.empty());
  EXPECT_EQ(parse_validation_record(to_text(r), "here"), r);
}

TEST(ValidationRecord, DropsDeletedCheckpoints) {
  ValidationRecord r;
  for (Index step : {1, 2, 3}) r.add(step, 1.0 / static_cast<double>(step), 3);
  r.retain({1, 3, 7});
  EXPECT_EQ(r.best, (Entries{{3, 1.0 / 3}, {1, 1}}));
  EXPECT_EQ(parse_validation_record(to_text(r), "here"), r);  // losses are equal bitwise
}

TEST(ValidationRecord, NamesDamagedText) {
  const std::string good = to_text([] {
    ValidationRecord r;
    r.add(1, 2, 1);
    return r;
  }());
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"\"since_lowest\":0", "\"since_lowest\":-1"},
                                 {"\"lowest\":2", "\"lowest\":null"},
                                 {"{\"step\":1", "{\"step\":-1"},
                                 {"\"best\"", "\"west\""},
                                 {"}", ""}}) {
    std::string bad = good;
    const std::size_t at = bad.find(from);
    ASSERT_NE(at, bad.npos) << from << " in " << good;
    bad.replace(at, from.size(), to);
    EXPECT_BAD_INPUT(parse_validation_record(bad, "step-9"), "step-9 has a damaged record of validations");
  }
}

// A checkpoint holds the record. One without validations, as of earlier versions, does not.
TEST(ValidationRecord, IsSavedInACheckpoint) {
  const TempFolder run;
  test::SingleRank trainer;
  TrainState state = test::example_state(3);
  save_checkpoint(*trainer.world, run.path(), state, trainer.store, {});
  EXPECT_TRUE(read_state(checkpoints_of(run.path()) / step_name(3)).validation.empty());
  state.step = 4;
  state.validation.add(2, 0.1, 1);
  state.validation.add(4, 0.2, 1);
  save_checkpoint(*trainer.world, run.path(), state, trainer.store, {});
  EXPECT_EQ(read_state(checkpoints_of(run.path()) / step_name(4)).validation, state.validation);
}

}  // namespace
}  // namespace sy
