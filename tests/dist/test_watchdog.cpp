#include "dist/watchdog.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>

namespace sy {
namespace {

struct Many {
  std::array<Index, 9> all;
};

TEST(Seqlock, IsReadWhole) {
  struct Pointing {
    const char* words = "none";
  };
  EXPECT_STREQ(Seqlock<Pointing>().read().words, "none");
  Seqlock<Many> published;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (Index i = 0; i < 200000; ++i) {
      Many many{};
      many.all.fill(i);
      published.write(many);
    }
    done = true;
  });
  Index before = 0;
  while (!done) {
    const Many many = published.read();
    for (const Index x : many.all) ASSERT_EQ(x, many.all[0]);
    ASSERT_GE(many.all[0], before);
    before = many.all[0];
  }
  writer.join();
  EXPECT_EQ(published.read().all[8], 199999);
}

TEST(Waiting, IsThatOfTheInnermostScope) {
  EXPECT_EQ(published_wait.read().what, nullptr);
  {
    const Waiting outer("all-to-all", "with rank 1", {3, 4});
    const auto since = published_wait.read().since;
    {
      const Waiting inner("the device");
      EXPECT_STREQ(published_wait.read().what, "the device");
      EXPECT_EQ(published_wait.read().rows.expects, -1);
    }
    EXPECT_STREQ(published_wait.read().what, "all-to-all");
    EXPECT_EQ(published_wait.read().rows.expects, 4);
    const auto again = published_wait.read().since;
    EXPECT_GT(again, since);
    Waiting::progress();
    EXPECT_GT(published_wait.read().since, again);
  }
  EXPECT_EQ(published_wait.read().what, nullptr);
}

TEST(Watchdog, SaysWhoWaitsForWhatAndWhere) {
  const Activity doing{"forward pass", 2, "dispatch", 7};
  EXPECT_EQ(
      words_of({"an all-to-all", "with ranks 0, 2", 12, 34}, doing, 5.04),
      "has waited 5.0 s in the dispatch of the forward pass of layer 2, step 7 for an all-to-all with ranks 0, 2: it sends "
      "12 rows, and expects 34");
  EXPECT_EQ(words_of({"a barrier", "with rank 1"}, {}, 600), "has waited 600 s for a barrier with rank 1");
  EXPECT_EQ(words_of({}, {"", -1, "", 7}, 0), "computes in step 7");
}

TEST(Watchdog, ATimeoutThatIsNoNumberIsBadInput) {
  for (const char* given : {"soon", "", "0", "-1", "5s", "nan", "inf"}) {
    setenv("SWITCHYARD_TIMEOUT", given, 1);
    EXPECT_THROW(hang_timeout(), InputError) << given;
  }
  setenv("SWITCHYARD_TIMEOUT", "2.5", 1);
  EXPECT_EQ(hang_timeout().count(), 2.5);
  unsetenv("SWITCHYARD_TIMEOUT");
  EXPECT_EQ(hang_timeout().count(), 600);
}

// A rank alone that computes for long does not hang.
TEST(Watchdog, LeavesWhoComputesAlone) {
  const auto self = make_comm_self();
  const Watchdog watchdog(*self, std::chrono::milliseconds(40));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

TEST(WatchdogDeathTest, EndsADeviceThatHangs) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        const auto self = make_comm_self();
        const Watchdog watchdog(*self, std::chrono::milliseconds(200));
        const DoingStep step(3);
        const Doing doing("forward pass", 1);
        const Waiting waiting("the device", "", {}, true);
        std::this_thread::sleep_for(std::chrono::minutes(2));
      },
      testing::ExitedWithCode(1),
      "switchyard: this process has waited 0.. s in the forward pass of layer 1, step 3 for the device");
}

}  // namespace
}  // namespace sy
