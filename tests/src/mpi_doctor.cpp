// Facts that the ranks of doctor find out about each other.
#include <gtest/gtest.h>

#include "src/doctor/probes.h"
#include "tests/mpi_world.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

using test::world;
using namespace std::chrono_literals;

TEST(DoctorRanks, MeasuresClockDifferences) {
  const auto [ahead, error] = probe_clock(world(), [] { return time_of_day() + 10.0 * world().rank(); });
  EXPECT_GE(error, 0);
  EXPECT_LT(error, 5);
  EXPECT_NEAR(ahead, 10.0 * world().rank(), error + 0.001);
}

TEST(DoctorRanks, ProbesASharedFolder) {
  const TempFolder own;
  const std::string shared = all_gather_texts(world(), own.path().string()).front();
  const FolderFacts facts = probe_folder(world(), shared, world().rank() == 0);
  EXPECT_EQ(facts.error, "");
  EXPECT_GE(facts.seen_after, 0);
  EXPECT_EQ(facts.write_seconds > 0, world().rank() == 0);
  EXPECT_EQ(facts.write_bandwidth > 0, world().rank() == 0);
  world().barrier();  // the folder stays until all ranks have probed it
  EXPECT_TRUE(std::filesystem::is_empty(shared));
  world().barrier();
}

TEST(DoctorRanks, ProbesAFolderPerRank) {
  const TempFolder own;
  const FolderFacts facts = probe_folder(world(), own.path(), true, 50ms);
  EXPECT_EQ(facts.error, "");
  EXPECT_EQ(facts.seen_after >= 0, world().rank() == 0);
  EXPECT_TRUE(std::filesystem::is_empty(own.path()));
}

TEST(DoctorRanks, ReportsAFolderMissingOnOneRank) {
  const TempFolder own;
  const std::string shared = all_gather_texts(world(), own.path().string()).front();
  const int last = world().size() - 1;
  const FolderFacts facts = probe_folder(world(), world().rank() == last ? shared + "/none" : shared, false, 50ms);
  world().barrier();
  EXPECT_EQ(has(facts.error, "No such file"), world().rank() == last) << facts.error;
  EXPECT_EQ(facts.seen_after >= 0, world().rank() != last);
}

TEST(DoctorRanks, MeasuresSpeedOfComputingRanks) {
  const double speed = probe_speed(world(), world().rank() == 0 ? -1 : 0);
  EXPECT_EQ(speed > 1e6, world().rank() != 0) << speed;
}

}  // namespace
}  // namespace sy
