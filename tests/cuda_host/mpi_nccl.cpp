// Tests of the emulated NCCL, on any number of ranks: values, communicators, and mistakes.
#define OMPI_SKIP_MPICXX 1
#include <gtest/gtest.h>
#include <mpi.h>
#include <nccl.h>

#include <cmath>

#include "host_test.h"

namespace sy::cuda {
namespace {

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

class HostNccl : public HostTest {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    cuda_host::set_device_count(64);
    ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
    comm = make_comm(MPI_COMM_WORLD);
  }
  void TearDown() override {
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    cudaDeviceSynchronize();
    HostTest::TearDown();
  }

  static ncclComm_t make_comm(MPI_Comm ranks, ncclConfig_t* config = nullptr, ncclResult_t expected = ncclSuccess) {
    int rank_of = 0, size_of = 0;
    MPI_Comm_rank(ranks, &rank_of);
    MPI_Comm_size(ranks, &size_of);
    ncclUniqueId id{};
    if (rank_of == 0) ncclGetUniqueId(&id);
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, ranks);
    ncclComm_t made = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&made, size_of, id, rank_of, config), expected);
    return made;
  }

  // Element i of the input of rank r.
  static double input(int r, Index i) { return static_cast<double>((r + 1) * 3 + i * (r + 2) % 7); }
  double sum(Index i) const {
    double total = 0;
    for (int r = 0; r < size; ++r) total += input(r, i);
    return total;
  }
  template <class T>
  View mine(Index n) {
    std::vector<T> values;
    for (Index i = 0; i < n; ++i) values.push_back(static_cast<T>(static_cast<float>(input(rank, i))));
    return upload(values);
  }
  template <class T>
  void expect(View x, const std::function<double(Index)>& value) {
    const auto found = download<T>(x);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_EQ(static_cast<double>(found[i]), value(static_cast<Index>(i))) << i;
  }

  template <class T>
  void all_kinds(ncclDataType_t type) {
    constexpr Index n = 5;
    const DType dtype = cuda_host::type_of<T>;
    const auto count = static_cast<std::size_t>(n);
    View y = memory({n}, dtype);
    const int root = size - 1;

    ASSERT_EQ(ncclAllReduce(mine<T>(n).bytes(), y.bytes(), count, type, ncclSum, comm, context.stream.end_capture()),
              ncclSuccess);
    expect<T>(y, [&](Index i) { return sum(i); });
    View x = mine<T>(n);
    ASSERT_EQ(ncclAllReduce(x.bytes(), x.bytes(), count, type, ncclMax, comm, context.stream.end_capture()),
              ncclSuccess);
    expect<T>(x, [&](Index i) {
      double most = 0;
      for (int r = 0; r < size; ++r) most = std::max(most, input(r, i));
      return most;
    });

    x = mine<T>(n);
    ASSERT_EQ(ncclReduce(x.bytes(), x.bytes(), count, type, ncclSum, root, comm, context.stream.end_capture()),
              ncclSuccess);
    expect<T>(x, [&](Index i) { return rank == root ? sum(i) : input(rank, i); });

    y = memory({n}, dtype);
    ASSERT_EQ(ncclReduceScatter(mine<T>(n * size).bytes(), y.bytes(), count, type, ncclSum, comm,
                                context.stream.end_capture()),
              ncclSuccess);
    expect<T>(y, [&](Index i) { return sum(rank * n + i); });
    x = mine<T>(n * size);
    ASSERT_EQ(ncclReduceScatter(x.bytes(), x.rows(rank * n, n).bytes(), count, type, ncclSum, comm,
                                context.stream.end_capture()),
              ncclSuccess);
    expect<T>(x.rows(rank * n, n), [&](Index i) { return sum(rank * n + i); });

    y = memory({n * size}, dtype);
    ASSERT_EQ(ncclAllGather(mine<T>(n).bytes(), y.bytes(), count, type, comm, context.stream.end_capture()),
              ncclSuccess);
    const auto gathered = [&](Index i) { return input(static_cast<int>(i / n), i % n); };
    expect<T>(y, gathered);
    y = memory({n * size}, dtype);
    x = mine<T>(n);
    cudaMemcpyAsync(y.rows(rank * n, n).bytes(), x.bytes(), static_cast<std::size_t>(x.size_bytes()),
                    cudaMemcpyDeviceToDevice, context.stream.end_capture());
    ASSERT_EQ(ncclAllGather(y.rows(rank * n, n).bytes(), y.bytes(), count, type, comm, context.stream.end_capture()),
              ncclSuccess);
    expect<T>(y, gathered);

    x = mine<T>(n);
    ASSERT_EQ(ncclBroadcast(x.bytes(), x.bytes(), count, type, root, comm, context.stream.end_capture()), ncclSuccess);
    expect<T>(x, [&](Index i) { return input(root, i); });
  }

  const int rank = world_rank(), size = world_size();
  ncclComm_t comm = nullptr;
};

TEST_F(HostNccl, ComputesCollectivesInF32) {
  all_kinds<float>(ncclFloat32);
}
TEST_F(HostNccl, ComputesCollectivesInF64) {
  all_kinds<double>(ncclFloat64);
}
TEST_F(HostNccl, ComputesCollectivesInBf16) {
  all_kinds<bf16>(ncclBfloat16);
}
TEST_F(HostNccl, ComputesCollectivesInI32) {
  all_kinds<std::int32_t>(ncclInt32);
}
TEST_F(HostNccl, ComputesCollectivesInI64) {
  all_kinds<std::int64_t>(ncclInt64);
}

TEST_F(HostNccl, RoundsSumsOfBf16AtEachRank) {
  // Adding 1 to 256 in bf16 gives 256 each time; in f32 it does not.
  const float values[] = {256, 1, 1, 1};
  const View x = upload(std::vector<bf16>{values[rank % 4]});
  ASSERT_EQ(ncclAllReduce(x.bytes(), x.bytes(), 1, ncclBfloat16, ncclSum, comm, context.stream.end_capture()),
            ncclSuccess);
  bf16 rounded{0.0f};
  for (int r = 0; r < size; ++r) rounded = bf16(static_cast<float>(rounded) + values[r % 4]);
  EXPECT_EQ(static_cast<float>(download<bf16>(x)[0]), static_cast<float>(rounded));
}

// Rank r sends r + s + 1 elements to rank s, but nothing if that is a multiple of 3.
TEST_F(HostNccl, ExchangesMessagesOfAnySize) {
  const auto count = [](int r, int s) { return (r + s + 1) % 3 == 0 ? 0 : r + s + 1; };
  const auto value = [](int r, int s, Index i) { return static_cast<std::int32_t>(1000 * r + 100 * s + i); };
  std::vector<std::int32_t> values;
  Index receives = 0;
  for (int s = 0; s < size; ++s) {
    for (Index i = 0; i < count(rank, s); ++i) values.push_back(value(rank, s, i));
    receives += count(s, rank);
  }
  values.push_back(0);  // never empty
  const View x = upload(values), y = memory({receives + 1}, DType::i32);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  Index sent = 0, received = 0;
  for (int s = 0; s < size; ++s) {
    const auto send = count(rank, s), receive = count(s, rank);
    EXPECT_EQ(ncclSend(x.bytes() + 4 * sent, static_cast<std::size_t>(send) * 4, ncclUint8, s, comm,
                       context.stream.end_capture()),
              ncclSuccess);
    EXPECT_EQ(ncclRecv(y.bytes() + 4 * received, static_cast<std::size_t>(receive) * 4, ncclUint8, s, comm,
                       context.stream.end_capture()),
              ncclSuccess);
    sent += send;
    received += receive;
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  std::vector<std::int32_t> expected;
  for (int s = 0; s < size; ++s)
    for (Index i = 0; i < count(s, rank); ++i) expected.push_back(value(s, rank, i));
  EXPECT_EQ(download<std::int32_t>(y.rows(0, receives)), expected);
}

TEST_F(HostNccl, KeepsTheOrderOfMessagesBetweenTwoRanks) {
  const int to = (rank + 1) % size, from = (rank + size - 1) % size;
  const View x = mine<float>(1 << 20), y = memory({1 << 20});
  const std::size_t block = 1 << 18;
  ncclGroupStart();
  for (std::size_t i = 0; i < 4; ++i) {
    ncclSend(x.bytes() + 4 * block * i, block, ncclFloat32, to, comm, context.stream.end_capture());
    ncclRecv(y.bytes() + 4 * block * i, block, ncclFloat32, from, comm, context.stream.end_capture());
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  expect<float>(y, [&](Index i) { return input(from, i); });
}

TEST_F(HostNccl, RunsTwoCommunicatorsAtOnce) {
  // A communicator of the ranks of equal parity, in reverse order, beside that of all ranks.
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  const ncclComm_t of_half = make_comm(half);
  int count = 0, my = 0, device = -1, expected = 0;
  MPI_Comm_size(half, &expected);
  EXPECT_EQ(ncclCommCount(of_half, &count), ncclSuccess);
  EXPECT_EQ(count, expected);
  MPI_Comm_rank(half, &expected);
  EXPECT_EQ(ncclCommUserRank(of_half, &my), ncclSuccess);
  EXPECT_EQ(my, expected);
  EXPECT_EQ(ncclCommCuDevice(of_half, &device), ncclSuccess);
  EXPECT_EQ(device, rank);

  const View x = mine<float>(3), y = memory({3}), z = memory({3});
  const bool first = rank < size / 2;  // in a group the order of communicators may differ
  ncclGroupStart();
  if (first) ncclAllReduce(x.bytes(), y.bytes(), 3, ncclFloat32, ncclSum, comm, context.stream.end_capture());
  ncclAllReduce(x.bytes(), z.bytes(), 3, ncclFloat32, ncclSum, of_half, context.stream.end_capture());
  if (!first) ncclAllReduce(x.bytes(), y.bytes(), 3, ncclFloat32, ncclSum, comm, context.stream.end_capture());
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  expect<float>(y, [&](Index i) { return sum(i); });
  expect<float>(z, [&](Index i) {
    double total = 0;
    for (int r = rank % 2; r < size; r += 2) total += input(r, i);
    return total;
  });
  EXPECT_EQ(ncclCommDestroy(of_half), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(of_half), ncclInvalidArgument);
  expect_mistake("of a communicator that is no more", [&] {
    ncclAllReduce(x.bytes(), y.bytes(), 3, ncclFloat32, ncclSum, of_half, context.stream.end_capture());
  });
  MPI_Comm_free(&half);
}

TEST_F(HostNccl, RejectsInvalidOperands) {
  const View x = mine<float>(4), y = memory({4});
  const auto reduce = [&](const void* from, void* to, cudaStream_t s) {
    ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, s);
  };
  expect_mistake("what is sent, which is uninitialised",
                 [&] { reduce(memory({4}).bytes(), y.bytes(), context.stream.end_capture()); });
  expect_mistake("reaches beyond its allocation",
                 [&] { reduce(x.bytes() + 4, y.bytes(), context.stream.end_capture()); });
  expect_mistake("receives what", [&] { reduce(x.bytes(), x.bytes() + 4, context.stream.end_capture()); });
  reduce(x.bytes(), y.bytes(), context.stream.end_capture());
  expect_mistake("without waiting for ncclAllReduce", [&] { reduce(y.bytes(), memory({4}).bytes(), stream()); });
  expect_mistake("in one group", [&] {
    ncclGroupStart();
    ncclSend(x.bytes(), 4, ncclFloat32, rank, comm, context.stream.end_capture());
    ncclRecv(x.bytes() + 8, 2, ncclFloat32, rank, comm, context.stream.end_capture());
    ncclGroupEnd();
  });
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_EQ(ncclSend(x.bytes(), 4, ncclFloat32, size, comm, context.stream.end_capture()), ncclInvalidArgument);
  expect_mistake("waits for 8 bytes from rank", [&] {
    ncclGroupStart();
    ncclSend(x.bytes(), 1, ncclFloat32, rank, comm, context.stream.end_capture());
    ncclRecv(y.bytes(), 2, ncclFloat32, rank, comm, context.stream.end_capture());
    ncclGroupEnd();
  });
}

TEST_F(HostNccl, RejectsTwoRanksOnOneDevice) {
  if (size == 1) GTEST_SKIP();
  cudaSetDevice(rank / 2);
  make_comm(MPI_COMM_WORLD, nullptr, ncclInvalidUsage);
  EXPECT_STREQ(ncclGetLastError(nullptr), "Duplicate GPU detected");
  setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);
  EXPECT_EQ(ncclCommDestroy(make_comm(MPI_COMM_WORLD)), ncclSuccess);
  unsetenv("NCCL_HOSTID");
}

TEST_F(HostNccl, SupportsNonBlockingCommunicators) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclComm_t mine_alone = make_comm(MPI_COMM_WORLD, &config, ncclInProgress);
  const View x = mine<float>(4), y = memory({4});
  const auto reduce = [&] {
    return ncclAllReduce(x.bytes(), y.bytes(), 4, ncclFloat32, ncclSum, mine_alone, context.stream.end_capture());
  };
  const auto state = [&] {
    ncclResult_t s = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(mine_alone, &s), ncclSuccess);
    return s;
  };
  expect_mistake("while another call of its communicator is in progress", [&] { reduce(); });
  EXPECT_EQ(state(), ncclInProgress);
  EXPECT_EQ(state(), ncclSuccess);
  EXPECT_EQ(reduce(), ncclInProgress);
  expect_mistake("which is uninitialised", [&] { download<float>(y); });  // not on the stream yet
  EXPECT_EQ(state(), ncclInProgress);
  EXPECT_EQ(state(), ncclSuccess);
  expect<float>(y, [&](Index i) { return sum(i); });
  EXPECT_EQ(ncclCommDestroy(mine_alone), ncclSuccess);
}

TEST_F(HostNccl, ReportsALostRank) {
  const ncclComm_t lost = make_comm(MPI_COMM_WORLD);
  const View x = mine<float>(4);
  ncclResult_t state = ncclSuccess;
  cuda_host::set_nccl_error(ncclRemoteError);
  EXPECT_EQ(ncclAllReduce(x.bytes(), x.bytes(), 4, ncclFloat32, ncclSum, lost, context.stream.end_capture()),
            ncclSuccess);
  EXPECT_EQ(ncclCommGetAsyncError(lost, &state), ncclSuccess);
  EXPECT_EQ(state, ncclRemoteError);
  cudaEvent_t done = event();
  cudaEventRecord(done, context.stream.end_capture());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaEventQuery(done), cudaErrorNotReady);
  cudaGetLastError();
  expect_mistake("waits for ever", [&] { cudaStreamSynchronize(context.stream.end_capture()); });
  EXPECT_EQ(ncclCommAbort(lost), ncclSuccess);
  EXPECT_EQ(cudaStreamSynchronize(context.stream.end_capture()), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(done), cudaSuccess);
  cuda_host::set_nccl_error(ncclSuccess);
}

// ---- late ----

class LateNccl : public HostNccl {
 protected:
  void TearDown() override {
    cuda_host::set_running(cuda_host::Running::at_once);
    cuda_host::set_nccl_version(NCCL_VERSION_CODE);
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    HostNccl::TearDown();
  }
  void reduce(View x, View y, ncclComm_t of, cudaStream_t on) {
    ASSERT_EQ(ncclAllReduce(x.bytes(), y.bytes(), static_cast<std::size_t>(x.elements()), ncclFloat32, ncclSum, of, on),
              ncclSuccess);
  }
  // Reads it even while an operation writes it.
  static float now(View x) { return *reinterpret_cast<const float*>(x.bytes()); }
};

TEST_F(LateNccl, CompletesACollectiveWhenItIsWaitedFor) {
  const View x = mine<float>(3), y = upload(std::vector<float>(3, -1));
  const cudaStream_t aside = stream();
  const cudaEvent_t done = event();
  cuda_host::set_running(cuda_host::Running::late);
  reduce(x, y, comm, aside);
  cudaEventRecord(done, aside);
  EXPECT_EQ(now(y), -1);
  // Waiting for another stream, without an event, does not run the collective.
  EXPECT_EQ(cudaStreamSynchronize(context.stream.end_capture()), cudaSuccess);
  EXPECT_EQ(now(y), -1);
  // A stream that waits for the event sees the result, and so does the host after that stream.
  cudaStreamWaitEvent(context.stream.end_capture(), done, 0);
  const View z = memory({3});
  cudaMemcpyAsync(z.bytes(), y.bytes(), 12, cudaMemcpyDeviceToDevice, context.stream.end_capture());
  EXPECT_EQ(now(y), -1);
  expect<float>(z, [&](Index i) { return sum(i); });
}

TEST_F(LateNccl, ReturnsOldDataWithoutAWait) {
  const View x = mine<float>(3), y = upload(std::vector<float>(3, -1)), z = memory({3});
  const cudaStream_t aside = stream();
  cuda_host::set_running(cuda_host::Running::late);
  reduce(x, y, comm, aside);
  cudaMemcpyAsync(z.bytes(), y.bytes(), 12, cudaMemcpyDeviceToDevice, context.stream.end_capture());
  cudaEvent_t copied = event();
  cudaEventRecord(copied, context.stream.end_capture());
  while (cudaEventQuery(copied) != cudaSuccess) cudaGetLastError();
  EXPECT_EQ(now(z), -1);  // from before the collective
  expect_mistake("without waiting for", [&] { cudaDeviceSynchronize(); });
  cudaDeviceSynchronize();
}

// NCCL_LAUNCH_ORDER_IMPLICIT: "a kernel starts only when the one that was launched before has
// started".
TEST_F(LateNccl, OrdersOnlyTheStartsWithImplicitLaunchOrder) {
  for (const int version : {22809, 22505})
    for (const char* implicit : {"1", "0"}) {
      cuda_host::set_nccl_version(version);
      setenv("NCCL_LAUNCH_ORDER_IMPLICIT", implicit, 1);
      const ncclComm_t other = make_comm(MPI_COMM_WORLD);
      const View x = mine<float>(3), y = memory({3}), u = mine<float>(3), v = upload(std::vector<float>(3, -1));
      const cudaStream_t gradients = stream(), tokens = stream(), computing = stream();
      const cudaEvent_t computed = event();
      cuda_host::set_running(cuda_host::Running::late);
      cudaMemsetAsync(v.bytes(), 0, 12, computing);
      cudaEventRecord(computed, computing);
      cudaStreamWaitEvent(gradients, computed, 0);
      reduce(x, y, comm, gradients);
      reduce(u, u, other, tokens);
      cudaStreamSynchronize(tokens);
      const bool ordered = version >= 22600 && implicit[0] == '1';
      EXPECT_EQ(now(v), ordered ? 0 : -1) << version << " " << implicit;
      cudaDeviceSynchronize();
      cuda_host::set_running(cuda_host::Running::at_once);
      EXPECT_EQ(ncclCommDestroy(other), ncclSuccess);
    }
}

TEST_F(LateNccl, GivesTheSameSumsInAnyOrder) {
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  const ncclComm_t other = make_comm(MPI_COMM_WORLD);
  const cudaStream_t streams[] = {stream(), stream()};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const View x = mine<float>(4), y = memory({4}), z = memory({4});
    cuda_host::set_running(cuda_host::Running::seeded, seed * 8 + static_cast<std::uint64_t>(rank));
    for (int i = 0; i < 4; ++i) {
      reduce(x, y, comm, streams[0]);
      reduce(x, z, other, streams[1]);
    }
    cudaDeviceSynchronize();
    cuda_host::set_running(cuda_host::Running::at_once);
    expect<float>(y, [&](Index i) { return sum(i); });
    expect<float>(z, [&](Index i) { return sum(i); });
  }
  if (size > 1) {
    EXPECT_GT(cuda_host::counters().collectives_at_once, 1);
  }
  EXPECT_EQ(ncclCommDestroy(other), ncclSuccess);
}

}  // namespace
}  // namespace sy::cuda

// Only rank 0 reports. A failure on any rank ends the job, so that no rank waits for ever.
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  ::testing::InitGoogleTest(&argc, argv);
  class AbortOnFailure : public ::testing::EmptyTestEventListener {
    void OnTestPartResult(const ::testing::TestPartResult& result) override {
      if (!result.failed()) return;
      fmt::print(stderr, "rank {}: {}:{}: {}\n", sy::cuda::world_rank(), result.file_name() ? result.file_name() : "?",
                 result.line_number(), result.message());
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  };
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (sy::cuda::world_rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new AbortOnFailure);
  const int result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
