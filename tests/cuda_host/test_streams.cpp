// Tests of streams, events, copies and memory. Programs that wait correctly pass; others are
// reported.
#include <cmath>
#include <numeric>

#include "host_test.h"

namespace sy::cuda {
namespace {

class HostStreams : public HostTest {
 protected:
  void SetUp() override {
    HostTest::SetUp();
    other.stream = stream();
  }
  Context other;
};

__global__ void set(Out<float> y, float value) {
  y[threadIdx.x] = value;
}
__global__ void copy(In<float> x, Out<float> y) {
  y[threadIdx.x] = x[threadIdx.x];
}
void set_all(Context& context, View y, float value) {
  launch(context, {.threads = static_cast<int>(y.elements())}, set, out<float>(y), value);
}
void copy_all(Context& context, ConstView x, View y) {
  launch(context, {.threads = static_cast<int>(y.elements())}, copy, in<float>(x), out<float>(y));
}

TEST_F(HostStreams, DetectsAMissingWaitOfAReadAfterWrite) {
  const View x = memory({8}), y = memory({8});
  set_all(context, x, 3);
  expect_mistake("without waiting for the kernel launched at", [&] { copy_all(other, x, y); });
}

TEST_F(HostStreams, DetectsAMissingWaitOfAWriteAfterWrite) {
  const View x = memory({8});
  set_all(context, x, 3);
  expect_mistake("which writes it too", [&] { set_all(other, x, 4); });
}

TEST_F(HostStreams, DetectsAMissingWaitOfAWriteAfterRead) {
  const View x = upload(std::vector<float>(8, 1)), y = memory({8});
  copy_all(context, x, y);
  expect_mistake("which reads it", [&] { set_all(other, x, 4); });
}

TEST_F(HostStreams, AllowsConcurrentReadsAndDisjointWrites) {
  const View x = upload(std::vector<float>(16, 1)), y = memory({8}), z = memory({8});
  copy_all(context, x.rows(0, 8), y);
  copy_all(other, x.rows(0, 8), z);
  set_all(other, x.rows(8, 8), 2);
  set_all(context, y, 3);
  // `other` reads row 7.
  expect_mistake("which reads it", [&] { set_all(context, x.rows(7, 8), 2); });
}

TEST_F(HostStreams, MergesAdjacentRanges) {
  const View x = upload(std::vector<float>(16, 1)), y = memory({8});
  set_all(context, x.rows(0, 4), 2);
  set_all(context, x.rows(8, 4), 2);
  cudaStreamSynchronize(context.stream.end_capture());
  set_all(context, x, 3);
  expect_mistake("which writes it", [&] { copy_all(other, x.rows(8, 8), y); });
}

// A mark follows every 64 of 200 kernels. A query reports an event as ready if it is not the first.
TEST_F(HostStreams, CountsCompletedWorkAsProgress) {
  const View x = memory({8});
  for (int i = 0; i < 200; ++i) set_all(context, x, static_cast<float>(i));
  for (const bool expected : {false, true, true, true, false}) EXPECT_EQ(context.stream.has_progressed(), expected);
}

// No event is ready before the second call of the hook.
TEST_F(HostStreams, PublishesTheProgressOfALongWait) {
  const View x = memory({8});
  for (int i = 0; i < 100; ++i) set_all(context, x, static_cast<float>(i));
  const cudaEvent_t done = event();
  cudaEventRecord(done, context.stream.end_capture());
  cuda_host::set_latency(std::chrono::hours(1));
  int calls = 0;
  context.stream.wait_hook = [&] {
    if (++calls == 2) cuda_host::set_latency(std::chrono::milliseconds(0));
  };
  const std::uint64_t before = context.stream.blocked().version();
  context.stream.wait(done);
  // A write changes the version twice. The wait begins, is passed by a mark, and ends.
  EXPECT_EQ((context.stream.blocked().version() - before) / 2, 3u);
}

TEST_F(HostStreams, OrdersStreamsByEvents) {
  const View x = memory({8}), y = memory({8});
  const cudaEvent_t ready = event(), done = event();
  for (int step = 0; step < 3; ++step) {
    set_all(context, x, static_cast<float>(step));
    cudaEventRecord(ready, context.stream.end_capture());
    cudaStreamWaitEvent(other.stream.end_capture(), ready);
    copy_all(other, x, y);
    cudaEventRecord(done, other.stream.end_capture());
    cudaStreamWaitEvent(context.stream.end_capture(), done);
  }
  EXPECT_EQ(download<float>(y), std::vector<float>(8, 2));
  // An event covers the operations that were issued before it was recorded.
  cudaEventRecord(ready, context.stream.end_capture());
  set_all(context, x, 5);
  cudaStreamWaitEvent(other.stream.end_capture(), ready);
  expect_mistake("without waiting", [&] { copy_all(other, x, y); });
}

TEST_F(HostStreams, OrdersStreamsThroughSeveralEvents) {
  const View x = memory({8}), y = memory({8});
  Context third;
  third.stream = stream();
  const cudaEvent_t first = event(), second = event();
  set_all(context, x, 7);
  cudaEventRecord(first, context.stream.end_capture());
  cudaStreamWaitEvent(other.stream.end_capture(), first);
  cudaEventRecord(second, other.stream.end_capture());
  cudaStreamWaitEvent(third.stream.end_capture(), second);
  copy_all(third, x, y);
}

TEST_F(HostStreams, OrdersStreamsByHostWaits) {
  const View x = memory({8}), y = memory({8});
  set_all(context, x, 3);
  cudaStreamSynchronize(context.stream.end_capture());
  copy_all(other, x, y);
  const cudaEvent_t copied = event();
  cudaEventRecord(copied, other.stream.end_capture());
  expect_mistake("which reads it", [&] { set_all(context, x, 4); });
  cudaEventSynchronize(copied);
  set_all(context, x, 4);
  cudaDeviceSynchronize();
  set_all(other, x, 5);
}

TEST_F(HostStreams, ReportsAnEventAsNotReadyAtFirst) {
  const View x = memory({8});
  const cudaEvent_t done = event();
  EXPECT_EQ(cudaEventQuery(done), cudaSuccess);  // never recorded
  set_all(context, x, 3);
  cudaEventRecord(done, context.stream.end_capture());
  EXPECT_EQ(cudaEventQuery(done), cudaErrorNotReady);
  expect_mistake("an earlier error that nobody took: cudaErrorNotReady", [&] { set_all(context, x, 4); });
  EXPECT_EQ(cudaEventQuery(done), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(done), cudaSuccess);
  set_all(other, x, 4);  // the host knows that the write has ended
  EXPECT_EQ(cudaStreamQuery(other.stream.end_capture()), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(other.stream.end_capture()), cudaSuccess);
}

TEST_F(HostStreams, DetectsDestroyedStreamsAndEvents) {
  const cudaStream_t gone = stream();
  const cudaEvent_t destroyed = event();
  cudaStreamDestroy(gone);
  cudaEventDestroy(destroyed);
  expect_mistake("which has been destroyed", [&] { cudaStreamSynchronize(gone); });
  expect_mistake("has been destroyed", [&] { cudaEventRecord(destroyed, context.stream.end_capture()); });
  Context null;
  expect_mistake("null stream", [&] { set_all(null, memory({8}), 1); });
  cudaStream_t blocking = nullptr;
  expect_mistake("cudaStreamNonBlocking", [&] { cudaStreamCreateWithFlags(&blocking, cudaStreamDefault); });
}

TEST_F(HostStreams, CompletesCopiesToTheHostAtAWait) {
  const View x = upload(std::vector<float>{1, 2, 3});
  float* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 3 * sizeof(float)), cudaSuccess);
  std::vector<float> pageable(3);
  for (float* to : {pinned, pageable.data()}) {
    const cudaEvent_t before = event(), after = event();
    cudaEventRecord(before, context.stream.end_capture());
    cudaMemcpyAsync(to, x.bytes(), 3 * sizeof(float), cudaMemcpyDeviceToHost, context.stream.end_capture());
    cudaEventRecord(after, context.stream.end_capture());
    EXPECT_NE(to[1], 2);
    cudaEventSynchronize(before);
    EXPECT_NE(to[1], 2);
    set_all(context, x, 9);  // does not change the copy in flight
    cudaEventSynchronize(after);
    EXPECT_EQ(to[1], 2);
    const std::vector<float> again{1, 2, 3};
    cudaMemcpyAsync(x.bytes(), again.data(), 3 * sizeof(float), cudaMemcpyHostToDevice, context.stream.end_capture());
  }
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  expect_mistake("has not given", [&] { cudaFreeHost(pageable.data()); });
}

TEST_F(HostStreams, DetectsPinnedMemoryChangedBeforeItsCopy) {
  const View x = memory({3}), y = memory({3});
  float* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 3 * sizeof(float)), cudaSuccess);
  std::vector<float> pageable{1, 2, 3};
  std::copy(pageable.begin(), pageable.end(), pinned);
  cudaMemcpyAsync(y.bytes(), pageable.data(), 3 * sizeof(float), cudaMemcpyHostToDevice, context.stream.end_capture());
  pageable[1] = 7;  // the copy is already taken
  cudaMemcpyAsync(x.bytes(), pinned, 3 * sizeof(float), cudaMemcpyHostToDevice, context.stream.end_capture());
  cudaStreamSynchronize(context.stream.end_capture());
  pinned[1] = 7;
  EXPECT_EQ(download<float>(x)[1], 2);
  EXPECT_EQ(download<float>(y)[1], 2);
  cudaMemcpyAsync(x.bytes(), pinned, 3 * sizeof(float), cudaMemcpyHostToDevice, context.stream.end_capture());
  pinned[1] = 8;
  expect_mistake("changed pinned memory", [&] { cudaStreamSynchronize(context.stream.end_capture()); });
  cudaFreeHost(pinned);
}

TEST_F(HostStreams, RejectsInvalidCopies) {
  const View x = upload(std::vector<float>(8, 1)), y = memory({8});
  float host[8] = {};
  expect_mistake("the kind of the copy",
                 [&] { cudaMemcpyAsync(host, x.bytes(), 32, cudaMemcpyHostToDevice, context.stream.end_capture()); });
  expect_mistake("the kind of the copy",
                 [&] { cudaMemcpyAsync(x.bytes(), host, 32, cudaMemcpyDeviceToDevice, context.stream.end_capture()); });
  expect_mistake("reaches beyond its allocation", [&] {
    cudaMemcpyAsync(y.bytes() + 4, x.bytes(), 32, cudaMemcpyDeviceToDevice, context.stream.end_capture());
  });
  set_all(context, x, 2);
  expect_mistake("without waiting", [&] {
    cudaMemcpyAsync(y.bytes(), x.bytes(), 32, cudaMemcpyDeviceToDevice, other.stream.end_capture());
  });
  expect_mistake("without waiting", [&] { cudaMemsetAsync(x.bytes(), 0, 32, other.stream.end_capture()); });
  cudaMemsetAsync(x.bytes(), 0, 16, context.stream.end_capture());
  EXPECT_EQ(download<float>(x), (std::vector<float>{0, 0, 0, 0, 2, 2, 2, 2}));
}

TEST_F(HostStreams, CopiesColumns) {
  std::vector<float> values(12);
  std::iota(values.begin(), values.end(), 0.0f);
  const View x = upload(values), y = memory({6});
  cudaMemcpy2DAsync(y.bytes(), 8, x.bytes() + 4, 16, 8, 3, cudaMemcpyDeviceToDevice, context.stream.end_capture());
  EXPECT_EQ(download<float>(y), (std::vector<float>{1, 2, 5, 6, 9, 10}));
  EXPECT_EQ(
      cudaMemcpy2DAsync(y.bytes(), 4, x.bytes(), 16, 8, 3, cudaMemcpyDeviceToDevice, context.stream.end_capture()),
      cudaErrorInvalidValue);
  cudaGetLastError();
  // The columns between are not part of the copy.
  cudaMemcpy2DAsync(y.bytes(), 8, x.bytes() + 4, 16, 8, 3, cudaMemcpyDeviceToDevice, context.stream.end_capture());
  set_all(other, x.rows(3, 1), 0);
  expect_mistake("which reads it", [&] { set_all(other, x.rows(2, 1), 0); });
}

TEST_F(HostStreams, LimitsAndCountsMemory) {
  cudaDeviceSynchronize();
  const auto before = cuda_host::counters();
  std::size_t free = 0, total = 0, free_then = 0;
  cudaMemGetInfo(&free, &total);
  const View x = memory({1000});
  cudaMemGetInfo(&free_then, &total);
  EXPECT_EQ(free - free_then, 4000u);
  void* too_much = nullptr;
  EXPECT_EQ(cudaMalloc(&too_much, free_then + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  set_all(context, x.rows(0, 8), 1);
  cudaStreamSynchronize(context.stream.end_capture());
  cudaStreamSynchronize(context.stream.end_capture());  // nothing to wait for
  cudaFree(x.bytes());
  const auto after = cuda_host::counters();
  EXPECT_EQ(after.allocations - before.allocations, 2);
  EXPECT_EQ(after.frees - before.frees, 1);
  EXPECT_EQ(after.waits - before.waits, 1);
  EXPECT_EQ(after.launches - before.launches, 1);
}

// No operation runs while a graph is captured. Every launch runs all of them, on the present
// values.
TEST_F(HostStreams, RunsGraphOperationsAtLaunch) {
  const View x = memory({8}), y = memory({8});
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(context.stream.end_capture(), cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(context.stream.end_capture(), cudaStreamCaptureModeRelaxed), cudaErrorIllegalState);
  cudaGetLastError();
  const auto before = cuda_host::counters();
  copy_all(context, x, y);  // x is not initialised yet, but is not read now
  cudaMemsetAsync(x.bytes(), 0, 16, context.stream.end_capture());
  cudaMemcpyAsync(y.rows(6, 2).bytes(), x.bytes(), 8, cudaMemcpyDeviceToDevice, context.stream.end_capture());
  ASSERT_EQ(cudaStreamEndCapture(context.stream.end_capture(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (float value : {3.0f, 5.0f}) {
    cudaStreamSynchronize(other.stream.end_capture());
    set_all(context, x, value);
    EXPECT_EQ(cudaGraphLaunch(executable, context.stream.end_capture()), cudaSuccess);
    EXPECT_EQ(download<float>(y), (std::vector<float>{value, value, value, value, value, value, 0, 0}));
    EXPECT_EQ(download<float>(x), (std::vector<float>{0, 0, 0, 0, value, value, value, value}));
  }
  const auto after = cuda_host::counters();
  EXPECT_EQ(after.graphs - before.graphs, 2);
  EXPECT_EQ(after.launches - before.launches, 2);  // set_all
  // Operations of a graph are checked like those of a stream.
  set_all(other, x, 1);
  expect_mistake("without waiting", [&] { cudaGraphLaunch(executable, context.stream.end_capture()); });
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  expect_mistake("has been destroyed", [&] { cudaGraphLaunch(executable, context.stream.end_capture()); });
}

TEST_F(HostStreams, CapturesOnlyKernelsAndDeviceCopies) {
  const View x = upload(std::vector<float>(8, 1));
  const cudaEvent_t done = event();
  const cudaStream_t captured = context.stream.end_capture();
  ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed), cudaSuccess);
  float host[8] = {};
  const std::string message = "which is being captured";
  expect_mistake(message, [&] { cudaMemcpyAsync(host, x.bytes(), 32, cudaMemcpyDeviceToHost, captured); });
  expect_mistake(message, [&] { cudaMemcpyAsync(x.bytes(), host, 32, cudaMemcpyHostToDevice, captured); });
  expect_mistake(message, [&] { cudaEventRecord(done, captured); });
  expect_mistake(message, [&] { cudaStreamWaitEvent(captured, done); });
  expect_mistake(message, [&] { cudaStreamSynchronize(captured); });
  expect_mistake(message, [&] { cudaStreamQuery(captured); });
  expect_mistake(message, [&] { cudaStreamDestroy(captured); });
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaErrorIllegalState);
  cudaGetLastError();
}

// ---- the stream of the product ----

// The first pass runs directly, the second is recorded, and the others are replayed.
TEST_F(HostStreams, ReplaysARepeatedRegionAsAGraph) {
  const View x = memory({8}), y = memory({8}), z = memory({8});
  const cudaEvent_t done = event();
  const auto pass = [&] {
    copy_all(context, x, y);
    cudaEventRecord(done, context.stream.end_capture());
    copy_all(context, y, z);
    set_all(context, y, 2);
  };
  for (int run = 0; run < 5; ++run) {
    const float value = static_cast<float>(run) + 3;
    set_all(context, x, value);
    const auto before = cuda_host::counters();
    context.stream.graph_region("test", pass);
    const auto after = cuda_host::counters();
    EXPECT_EQ(after.graphs - before.graphs, run == 0 ? 0 : 2);
    EXPECT_EQ(after.launches - before.launches, run == 0 ? 3 : 0);
    cudaStreamWaitEvent(other.stream.end_capture(), done);
    EXPECT_EQ(download<float>(z), std::vector<float>(8, value));
    EXPECT_EQ(download<float>(y), std::vector<float>(8, 2));
  }
  const auto before = cuda_host::counters();
  pass();  // outside of graph_region()
  EXPECT_EQ(cuda_host::counters().graphs, before.graphs);
}

TEST_F(HostStreams, SeparatesRegionsByName) {
  const View x = memory({8}), y = memory({8});
  for (int run = 0; run < 3; ++run)
    for (const View& to : {x, y})
      context.stream.graph_region(to.bytes() == x.bytes() ? "x" : "y",
                                  [&] { set_all(context, to, to.bytes() == x.bytes() ? 1.0f : 2.0f); });
  EXPECT_EQ(download<float>(x), std::vector<float>(8, 1));
  EXPECT_EQ(download<float>(y), std::vector<float>(8, 2));
}

// A changed pass is not replayed. It is recorded anew afterwards.
TEST_F(HostStreams, RejectsAChangedRegion) {
  const View x = upload(std::vector<float>(8, 1)), y = upload(std::vector<float>(8, 1));
  const auto set_x = [&] { set_all(context, x, 2); };
  // They differ in an argument, the tensor, its size, the kernel, the number of kernels (more, and
  // none), and the graphs that they become.
  const std::vector<std::function<void()>> others = {[&] { set_all(context, x, 3); },
                                                     [&] { set_all(context, y, 2); },
                                                     [&] { set_all(context, x.rows(0, 4), 2); },
                                                     [&] { copy_all(context, x, y); },
                                                     [&] { set_x(), set_x(); },
                                                     [&] { cudaEventRecord(event(), context.stream.end_capture()); },
                                                     [&] { set_x(), context.stream.end_capture(), set_x(); }};
  for (const auto& other_pass : others) {
    for (int run = 0; run < 3; ++run) context.stream.graph_region("test", set_x);
    EXPECT_THROW(context.stream.graph_region("test", other_pass), Failure);
    // The first operations of a pass alone are another pass, too.
    const auto twice = [&] { set_x(), set_x(), context.stream.end_capture(), set_x(); };
    for (int run = 0; run < 3; ++run) context.stream.graph_region("twice", twice);
    EXPECT_THROW(context.stream.graph_region("twice", other_pass), Failure);
    for (int run = 0; run < 3; ++run) context.stream.graph_region("twice", twice);
    EXPECT_THROW(context.stream.graph_region("twice", [&] { twice(), set_x(); }), Failure);
    for (int run = 0; run < 3; ++run) {
      set_all(context, x, 0);
      context.stream.graph_region("test", set_x);
      EXPECT_EQ(download<float>(x), std::vector<float>(8, 2));
    }
  }
}

// Members of several types, with padding between them.
struct Mixed {
  std::int8_t small;
  double large;
  Out<float> y;
  float value;
};
__global__ void set_mixed(Mixed x) {
  x.y[threadIdx.x] = x.value;
}
TEST_F(HostStreams, IgnoresPaddingWhenAReplayIsCompared) {
  const View x = memory({8}), y = memory({8});
  // The padding of the argument is filled with `rest`.
  const auto pass = [&](const Mixed& with, int rest) {
    context.stream.graph_region("mixed", [&] {
      alignas(Mixed) std::byte bytes[sizeof(Mixed)];
      std::memset(bytes, rest, sizeof bytes);
      auto* const made = reinterpret_cast<Mixed*>(bytes);
      made->small = with.small, made->large = with.large, made->y = with.y, made->value = with.value;
      launch(context, {.threads = 8}, set_mixed, *made);
    });
  };
  const Mixed first{1, 2.0, out<float>(x), 3.0f};
  Mixed others[] = {first, first, first, first};
  others[0].small = 2, others[1].large = 4, others[2].y = out<float>(y), others[3].value = 5;
  for (const Mixed& other_one : others) {
    for (int run = 0; run < 4; ++run) pass(first, run * 85);
    EXPECT_THROW(pass(other_one, 0), Failure);
  }
}

TEST_F(HostStreams, StopsRecordingAtAnError) {
  const View x = memory({8});
  for (int run = 0; run < 4; ++run) {
    const auto pass = [&] {
      set_all(context, x, 2);
      if (run < 2) fail("run {}", run);
    };
    if (run < 2)
      EXPECT_THROW(context.stream.graph_region("test", pass), Failure);
    else
      context.stream.graph_region("test", pass);
  }
  EXPECT_EQ(download<float>(x), std::vector<float>(8, 2));
}

TEST_F(HostStreams, SelectsDevices) {
  int count = 0, device = -1, can = 0;
  cuda_host::set_device_count(2);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 1);
  cudaDeviceProp of[2];
  for (int d : {0, 1}) EXPECT_EQ(cudaGetDeviceProperties(&of[d], d), cudaSuccess);
  EXPECT_NE(of[0].pciBusID, of[1].pciBusID);
  cuda_host::set_device_count(0);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  cuda_host::set_device_count(8);
  cudaGetLastError();
}

}  // namespace
}  // namespace sy::cuda
