#include <gtest/gtest.h>

#include "dist/rank_settings.h"
#include "dist/runtime.h"
#include "tests/mpi_world.h"

namespace sy::test {
namespace {

// Returns the error message on this rank; empty if there is no error.
std::string difference_of(const std::vector<RankSetting>& settings) {
  try {
    check_rank_settings(world(), settings, "start them alike");
  } catch (const CollectiveError& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

TEST(RankSettings, AcceptsEqualSettings) {
  EXPECT_EQ(difference_of({}), "");
  EXPECT_EQ(difference_of({{"lr", "0.1"}, {"steps", "5"}}), "");
}

TEST(RankSettings, NamesDifferingRanksAndSettings) {
  const int size = world().size(), rank = world().rank();
  if (size < 2) GTEST_SKIP();
  // Only the last rank differs.
  const bool last = rank == size - 1;
  std::string what = difference_of({{"lr", last ? "0.1" : "0.2"}, {"seed", "1"}, {"steps", last ? "5" : "6"}});
  EXPECT_EQ(what.find(fmt::format("rank {} on ", size - 1)), 0u) << what;
  EXPECT_NE(what.find(" has lr = 0.1, rank 0 has 0.2"), what.npos) << what;
  EXPECT_NE(what.find(" has steps = 5, rank 0 has 6: start them alike"), what.npos) << what;
  EXPECT_EQ(what.find("seed"), what.npos) << what;
  // All ranks differ from rank 0, and rank 2 in another way: it has a setting that rank 0 lacks.
  if (size < 4) return;
  std::vector<RankSetting> mine = {{"lr", rank == 0 ? "0.1" : rank == 2 ? "0.3" : "0.2"}};
  if (rank == 2) mine.push_back({"extra", "x"});
  what = difference_of(mine);
  EXPECT_EQ(what.find("ranks 1, 3 (the first on "), 0u) << what;
  EXPECT_NE(what.find(" have lr = 0.2, rank 0 has 0.1"), what.npos) << what;
  EXPECT_NE(what.find(" has lr = 0.3, rank 0 has 0.1"), what.npos) << what;
  EXPECT_NE(what.find(" has extra = x, rank 0 has nothing: start them alike"), what.npos) << what;
}

}  // namespace
}  // namespace sy::test
