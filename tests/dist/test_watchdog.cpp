#include "dist/watchdog.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "dist/phase.h"

namespace sy {
namespace {

struct Many {
  std::array<Index, 9> all;
};

TEST(Seqlock, ReadsConsistentValues) {
  struct Pointing {
    const char* text = "none";
  };
  EXPECT_STREQ(Seqlock<Pointing>().read().text, "none");
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

TEST(ScopedBlock, PublishesTheInnermostScope) {
  BlockState state;
  EXPECT_EQ(state.read().operation, nullptr);
  {
    const ScopedBlock outer(state, "all-to-all", "with rank 1", {3, 4});
    const auto since = state.read().since;
    {
      const ScopedBlock inner(state, "the device");
      EXPECT_STREQ(state.read().operation, "the device");
      EXPECT_EQ(state.read().rows.expects, -1);
    }
    EXPECT_STREQ(state.read().operation, "all-to-all");
    EXPECT_EQ(state.read().rows.expects, 4);
    const auto again = state.read().since;
    EXPECT_GT(again, since);
    state.progress();
    EXPECT_GT(state.read().since, again);
  }
  EXPECT_EQ(state.read().operation, nullptr);
}

TEST(Watchdog, DescribesTheWait) {
  const Phase phase{"forward pass", 2, "dispatch", 7};
  EXPECT_EQ(
      describe_state({"an all-to-all", "with ranks 0, 2", 12, 34}, phase, 5.04),
      "has waited 5.0 s in the dispatch of the forward pass of layer 2, step 7 for an all-to-all with ranks 0, 2: it sends "
      "12 rows, and expects 34");
  EXPECT_EQ(describe_state({"a barrier", "with rank 1", {}}, {}, 600), "has waited 600 s for a barrier with rank 1");
  EXPECT_EQ(describe_state({}, {"", -1, "", 7}, 0), "computes in step 7");
}

TEST(Watchdog, RejectsAnInvalidLocalTimeout) {
  for (const char* value : {"soon", "", "-1", "5s", "nan", "inf"}) {
    setenv("SWITCHYARD_LOCAL_TIMEOUT", value, 1);
    EXPECT_THROW(watchdog_limits(), InputError) << value;
  }
  for (const double seconds : {0., 2.5}) {
    setenv("SWITCHYARD_LOCAL_TIMEOUT", std::to_string(seconds).c_str(), 1);
    EXPECT_EQ(watchdog_limits().local.count(), seconds);
  }
  unsetenv("SWITCHYARD_LOCAL_TIMEOUT");
  EXPECT_EQ(watchdog_limits().local.count(), 3600);
}

TEST(Watchdog, RejectsAnInvalidTimeout) {
  for (const char* value : {"soon", "", "0", "-1", "5s", "nan", "inf"}) {
    setenv("SWITCHYARD_TIMEOUT", value, 1);
    EXPECT_THROW(hang_timeout(), InputError) << value;
  }
  setenv("SWITCHYARD_TIMEOUT", "2.5", 1);
  EXPECT_EQ(hang_timeout().count(), 2.5);
  unsetenv("SWITCHYARD_TIMEOUT");
  EXPECT_EQ(hang_timeout().count(), 600);
}

// A single rank that computes for a long time is no hang.
TEST(Watchdog, AllowsLongComputation) {
  RankContext rank;
  const Watchdog watchdog(rank, {std::chrono::milliseconds(40), Seconds(0)});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

// The limit of local work restarts with each phase and each chunk of a file.
// UnlimitedLocalWork suspends it.
TEST(Watchdog, AllowsLocalWorkThatProgresses) {
  RankContext rank;
  const Watchdog watchdog(rank, {std::chrono::minutes(1), Seconds(2)});
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const ScopedPhase phase(rank, "forward pass", i);
  }
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ++rank.files.chunks;
  }
  const UnlimitedLocalWork unlimited(rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(2600));
}

struct WatchdogDeathTest : testing::Test {
  void SetUp() override { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST_F(WatchdogDeathTest, EndsTheJobIfTheDeviceHangs) {
  EXPECT_EXIT(
      {
        const auto self = make_comm_self();
        RankContext& rank = self->rank_context();
        Watchdog watchdog(rank, {});
        watchdog.rendezvous(*self, {std::chrono::milliseconds(200), {}});
        const ScopedStep step(rank, 3);
        const ScopedPhase phase(rank, "forward pass", 1);
        const ScopedBlock block(rank.blocked, "the device", "", {}, true);
        std::this_thread::sleep_for(std::chrono::minutes(2));
      },
      testing::ExitedWithCode(1),
      "switchyard: this process has waited 0.. s in the forward pass of layer 1, step 3 for the device");
}

// Before the ranks know each other, a rank's own wait decides.
TEST_F(WatchdogDeathTest, EndsTheJobIfTheStartHangs) {
  EXPECT_EXIT(
      {
        setenv("OMPI_COMM_WORLD_RANK", "3", 1);
        RankContext rank;
        const Watchdog watchdog(rank, {std::chrono::milliseconds(200), {}});
        const ScopedBlock block(rank.blocked, "the start of MPI");
        std::this_thread::sleep_for(std::chrono::minutes(2));
      },
      testing::ExitedWithCode(1), "switchyard: rank 3 on .* has waited 0.. s for the start of MPI");
}

TEST_F(WatchdogDeathTest, EndsTheJobIfLocalWorkHangs) {
  EXPECT_EXIT(
      {
        RankContext rank;
        const Watchdog watchdog(rank, {std::chrono::minutes(1), std::chrono::milliseconds(200)});
        const ScopedPhase phase(rank, "save of a checkpoint");
        std::this_thread::sleep_for(std::chrono::minutes(2));
      },
      testing::ExitedWithCode(1), "has computed, read or written in the save of a checkpoint for 0.2 s");
}

// A process that is stopped does no local work: here it is stopped for 2 s, with a limit of 1 s.
TEST_F(WatchdogDeathTest, AllowsAStoppedProcess) {
  EXPECT_EXIT(
      {
        const pid_t process = getpid();
        RankContext rank;
        const Watchdog watchdog(rank, {std::chrono::minutes(1), std::chrono::seconds(1)});
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
