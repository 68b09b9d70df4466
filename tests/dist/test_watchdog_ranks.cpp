// Watchdogs of more ranks than one asks directly. Threads of one process stand for the ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "dist/watchdog.h"

namespace sy {
namespace {

using namespace std::chrono_literals;

TEST(WatchdogRanks, AskFewRanksAndReachAllInFewAnswers) {
  for (const int ranks : {1, 2, 32, 33, 40, 64, 1000, 16384}) {
    std::set<int> reached{0};
    int answers = 0;
    for (; static_cast<int>(reached.size()) < ranks; ++answers) {
      std::set<int> next = reached;
      for (const int r : reached)
        for (const int other : ranks_to_ask(r, ranks)) {
          ASSERT_TRUE(other >= 0 && other < ranks && other != r);
          next.insert(other);
        }
      ASSERT_GT(next.size(), reached.size());
      reached = next;
    }
    EXPECT_LE(answers, 14) << ranks;
    EXPECT_LE(ranks_to_ask(0, ranks).size(), 31u) << ranks;
  }
}

constexpr int num_ranks = 40;

// The memory in which the threads exchange the buffers of their collectives.
struct Exchange {
  std::barrier<> all{num_ranks};
  std::vector<std::vector<std::byte>> sent{num_ranks};
};

// The world of one thread.
class ThreadWorld final : public Comm {
 public:
  ThreadWorld(Exchange& exchange, int rank) : Comm(std::make_shared<RankContext>()), exchange_(exchange), rank_(rank) {}
  int size() const override { return num_ranks; }
  int rank() const override { return rank_; }

 private:
  // Calls use(r, bytes) with the bytes of each rank r.
  template <class Use>
  void exchange(ConstView x, const Use& use) {
    exchange_.sent[rank_].assign(x.bytes(), x.bytes() + x.size_bytes());
    exchange_.all.arrive_and_wait();
    for (int r = 0; r < num_ranks; ++r) use(r, exchange_.sent[r]);
    exchange_.all.arrive_and_wait();
  }
  std::unique_ptr<Comm> do_split(const std::function<int(int)>&) override { return nullptr; }
  void do_barrier() override {}
  Work do_broadcast(std::span<const RootedBuffer> buffers, ComputePoint) override {
    const auto& [x, root] = buffers[0];
    exchange(x, [&, to = x, from = root](int r, const std::vector<std::byte>& bytes) {
      if (r == from) std::memcpy(to.bytes(), bytes.data(), bytes.size());
    });
    return {};
  }
  void do_all_reduce(View x, Reduce) override {  // the maximum of integers
    exchange(x, [&](int, const std::vector<std::byte>& bytes) {
      Index other = 0;
      std::memcpy(&other, bytes.data(), sizeof other);
      x.as<Index>()[0] = std::max(x.as<Index>()[0], other);
    });
  }
  Work do_reduce(std::span<const RootedBuffer>, ComputePoint) override { return {}; }
  void do_reduce_scatter(ConstView, View, View) override {}
  void do_all_gather(ConstView in, View out) override {
    exchange(in, [&](int r, const std::vector<std::byte>& bytes) {
      std::memcpy(out.bytes() + r * in.size_bytes(), bytes.data(), bytes.size());
    });
  }
  std::vector<std::string> do_gather(std::string_view, int) override { return {}; }
  Work do_all_to_all_v(std::span<const SendReceive>, std::span<const Index>, std::span<const Index>) override {
    return {};
  }

  Exchange& exchange_;
  int rank_;
};

// All ranks but `other` wait for `time` with a limit of 4 seconds. `other` computes, or its
// watchdog ends. The process then exits with 0, unless a watchdog ends it before.
void wait_for_rank(int other, bool computes, std::chrono::seconds time) {
  Exchange exchange;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      ThreadWorld world(exchange, rank);
      auto watchdog = std::make_unique<Watchdog>(world.rank_context(), WatchdogLimits{4s, 0s});
      watchdog->rendezvous(world, {4s, 0s});
      if (rank == other) {
        if (!computes) watchdog.reset();
        std::this_thread::sleep_for(time);
      } else {
        const ScopedBlock block(world.rank_context().blocked, "a barrier");
        std::this_thread::sleep_for(time);
      }
      exchange.all.arrive_and_wait();
    });
  for (std::thread& thread : threads) thread.join();
  _exit(0);
}

// Rank 13 is at no distance of a power of two from most ranks. They learn of it from others.
TEST(WatchdogRanksDeathTest, WaitForARankThatComputes) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(wait_for_rank(13, true, 10s), testing::ExitedWithCode(0), "");
}

// The report names that rank, whichever rank writes it.
TEST(WatchdogRanksDeathTest, NameARankThatDoesNotAnswer) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(wait_for_rank(13, false, 60s), testing::ExitedWithCode(1), "rank 13 on .* does not answer");
}

TEST(WatchdogRanksDeathTest, EndAJobWithoutProgress) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(wait_for_rank(-1, true, 60s), testing::ExitedWithCode(1), "no rank has made progress for 4.0 s");
}

}  // namespace
}  // namespace sy
