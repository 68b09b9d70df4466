// Tests of Work handles, with a communicator that records the collectives that compute waits for.
#include <gtest/gtest.h>

#include "tests/forwarding_comm.h"

namespace sy {
namespace {

class RecordingComm final : public ForwardingComm {
 public:
  RecordingComm() : ForwardingComm(make_comm_self()) {}
  std::vector<std::size_t> waits, points;

  ComputePoint compute_point() override { return {next_point_++}; }

 private:
  void wait_for(std::size_t slot) override { waits.push_back(slot); }
  Work do_reduce(std::span<const RootedBuffer>, ComputePoint after) override {
    points.push_back(after.slot);
    return Work(*this, next_slot_++);
  }

  std::size_t next_slot_ = 0, next_point_ = 0;
};

class WorkHandle : public ::testing::Test {
 protected:
  Work start() { return comm_.start_reduce(view_of(&x_, {1}), 0); }
  float x_ = 0;
  RecordingComm comm_;
};

TEST_F(WorkHandle, WaitsOnce) {
  Work work = start();
  EXPECT_TRUE(comm_.waits.empty());
  work.wait();
  work.wait();
  EXPECT_EQ(comm_.waits, std::vector<std::size_t>{0});
}

TEST_F(WorkHandle, MovesTheWait) {
  Work first = start(), second = std::move(first);
  first.wait();  // NOLINT(bugprone-use-after-move): a moved Work is complete
  EXPECT_TRUE(comm_.waits.empty());
  second.wait();
  EXPECT_EQ(comm_.waits, std::vector<std::size_t>{0});
}

TEST_F(WorkHandle, JoinsTheLaterCollective) {
  Work work = start();
  work.join(start());
  work.join(Work());
  work.join(comm_.start_reduce(std::span<const RootedBuffer>()));  // starts nothing
  work.wait();
  EXPECT_EQ(comm_.waits, std::vector<std::size_t>{1});
}

TEST_F(WorkHandle, RejectsWorkOfAnotherCommunicator) {
  RecordingComm other;
  Work work = start();
  EXPECT_THROW(work.join(other.start_reduce(view_of(&x_, {1}), 0)), std::exception);
}

TEST_F(WorkHandle, DoesNotWaitWhenItIsDestroyed) {
  static_cast<void>(start());
  EXPECT_TRUE(comm_.waits.empty());
}

TEST_F(WorkHandle, StartsAfterItsPoint) {
  const ComputePoint point = comm_.compute_point();
  start().wait();
  const RootedBuffer buffer{view_of(&x_, {1}), 0};
  comm_.start_reduce({&buffer, 1}, point).wait();
  EXPECT_EQ(comm_.points, (std::vector<std::size_t>{1, 0}));
}

TEST_F(WorkHandle, IsCompleteOnHostBuffers) {
  const auto host = make_comm_self();
  Work work = host->start_reduce(view_of(&x_, {1}), 0);
  work.join(start());  // no communicator is in flight, so that any may follow
  work.wait();
  EXPECT_EQ(comm_.waits, std::vector<std::size_t>{0});
}

}  // namespace
}  // namespace sy
