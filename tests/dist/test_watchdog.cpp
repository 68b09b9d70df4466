#include "dist/watchdog.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
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
  EXPECT_EQ(words_of({"a barrier", "with rank 1", {}}, {}, 600), "has waited 600 s for a barrier with rank 1");
  EXPECT_EQ(words_of({}, {"", -1, "", 7}, 0), "computes in step 7");
}

TEST(Watchdog, ALocalTimeoutIsANumberOfSecondsOrZero) {
  for (const char* given : {"soon", "", "-1", "5s", "nan", "inf"}) {
    setenv("SWITCHYARD_LOCAL_TIMEOUT", given, 1);
    EXPECT_THROW(watchdog_limits(), InputError) << given;
  }
  for (const double seconds : {0., 2.5}) {
    setenv("SWITCHYARD_LOCAL_TIMEOUT", std::to_string(seconds).c_str(), 1);
    EXPECT_EQ(watchdog_limits().local.count(), seconds);
  }
  unsetenv("SWITCHYARD_LOCAL_TIMEOUT");
  EXPECT_EQ(watchdog_limits().local.count(), 3600);
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

// A single rank that computes for a long time is no hang.
TEST(Watchdog, LeavesWhoComputesAlone) {
  const Watchdog watchdog({std::chrono::milliseconds(40), Seconds(0)});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

// The limit of local work restarts with each activity and each chunk of a file.
// UnlimitedLocalWork suspends it.
TEST(Watchdog, LeavesWhoseOwnWorkGoesOn) {
  const Watchdog watchdog({std::chrono::minutes(1), Seconds(2)});
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const Doing doing("forward pass", i);
  }
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ++local_progress;
  }
  const UnlimitedLocalWork unlimited;
  std::this_thread::sleep_for(std::chrono::milliseconds(2600));
}

struct WatchdogDeathTest : testing::Test {
  void SetUp() override { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST_F(WatchdogDeathTest, EndsADeviceThatHangs) {
  EXPECT_EXIT(
      {
        const auto self = make_comm_self();
        Watchdog watchdog({});
        watchdog.rendezvous(*self, {std::chrono::milliseconds(200), {}});
        const DoingStep step(3);
        const Doing doing("forward pass", 1);
        const Waiting waiting("the device", "", {}, true);
        std::this_thread::sleep_for(std::chrono::minutes(2));
      },
      testing::ExitedWithCode(1),
      "switchyard: this process has waited 0.. s in the forward pass of layer 1, step 3 for the device");
}

// Before the ranks know each other, a rank's own wait decides.
TEST_F(WatchdogDeathTest, EndsAStartThatHangs) {
  EXPECT_EXIT(
      {
        setenv("OMPI_COMM_WORLD_RANK", "3", 1);
        const Watchdog watchdog({std::chrono::milliseconds(200), {}});
        const Waiting waiting("the start of MPI");
        std::this_thread::sleep_for(std::chrono::minutes(2));
      },
      testing::ExitedWithCode(1), "switchyard: rank 3 on .* has waited 0.. s for the start of MPI");
}

TEST_F(WatchdogDeathTest, EndsOwnWorkThatDoesNot) {
  EXPECT_EXIT(
      {
        const Watchdog watchdog({std::chrono::minutes(1), std::chrono::milliseconds(200)});
        const Doing doing("save of a checkpoint");
        std::this_thread::sleep_for(std::chrono::minutes(2));
      },
      testing::ExitedWithCode(1), "has computed, read or written in the save of a checkpoint for 0.2 s");
}

// A process that is stopped does no local work: here it is stopped for 2 s, with a limit of 1 s.
TEST_F(WatchdogDeathTest, LeavesWhoWasStopped) {
  EXPECT_EXIT(
      {
        const pid_t process = getpid();
        const Watchdog watchdog({std::chrono::minutes(1), std::chrono::seconds(1)});
        if (fork() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2300));
          kill(process, SIGCONT);
          _exit(0);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        raise(SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sy
