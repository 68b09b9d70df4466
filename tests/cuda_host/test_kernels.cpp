// Tests of kernels on the host: correct kernels give correct results, and every planted mistake is
// reported.
#include <cmath>

#include "host_test.h"

namespace sy::cuda {
namespace {

class HostKernels : public HostTest {};

std::vector<float> ramp(Index n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) - 40;
  return x;
}

template <class T>
__global__ void __launch_bounds__(1024) row_sums(In<T> x, Out<float> sums, Index width) {
  const Index row = blockIdx.y * gridDim.x + blockIdx.x;
  float sum = 0;
  for (Index i = threadIdx.x; i < width; i += blockDim.x) sum += to_float(x[row * width + i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[row] = sum;
}

TEST_F(HostKernels, ComputesRowSumsInBlocks) {
  const Index rows = 6, width = 1031;
  const std::vector<float> x = ramp(rows * width);
  std::vector<bf16> rounded;
  for (float v : x) rounded.push_back(v);
  for (const std::uint64_t seed : {0, 1, 2})
    for (const int threads : {32, 96, 1024}) {
      cuda_host::set_order_seed(seed);
      const View sums = memory({rows}), sums_of_bf16 = memory({rows});
      launch(context, {.x = 2, .y = 3, .threads = threads}, row_sums<float>, in<float>(upload(x)), out<float>(sums),
             width);
      launch(context, {.x = 2, .y = 3, .threads = threads}, row_sums<bf16>, in<bf16>(upload(rounded)),
             out<float>(sums_of_bf16), width);
      const auto found = download<float>(sums), found_of_bf16 = download<float>(sums_of_bf16);
      for (Index r = 0; r < rows; ++r) {
        float expected = 0;
        for (Index i = 0; i < width; ++i) expected += x[static_cast<std::size_t>(r * width + i)];
        EXPECT_EQ(found[static_cast<std::size_t>(r)], expected);
        EXPECT_EQ(found_of_bf16[static_cast<std::size_t>(r)], expected);
      }
    }
}

// Writes the result of f in each lane; the block is one warp.
template <class F>
__global__ void lanes(F f, Out<int> y) {
  y[threadIdx.x] = f(static_cast<int>(threadIdx.x));
}

TEST_F(HostKernels, ShufflesLanesOfAWarp) {
  const unsigned all = 0xffffffffu;
  const View y = memory({32}, DType::i32);
  const auto expect = [&](auto f, auto expected) {
    launch(context, {.threads = 32}, lanes<decltype(f)>, f, out<std::int32_t>(y));
    const auto found = download<std::int32_t>(y);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(found[static_cast<std::size_t>(i)], expected(i)) << i;
  };
  expect([](int i) { return __shfl_sync(all, 10 * i, 5); }, [](int) { return 50; });
  expect([](int i) { return __shfl_sync(all, 10 * i, 9, 8); }, [](int i) { return 10 * (i / 8 * 8 + 1); });
  expect([](int i) { return __shfl_sync(all, 10 * i, i + 1); }, [](int i) { return 10 * ((i + 1) % 32); });
  expect([](int i) { return __shfl_xor_sync(all, 10 * i, 3); }, [](int i) { return 10 * (i ^ 3); });
  expect([](int i) { return __shfl_up_sync(all, 10 * i, 3); }, [](int i) { return 10 * (i < 3 ? i : i - 3); });
  expect([](int i) { return __shfl_up_sync(all, 10 * i, 3, 16); }, [](int i) { return 10 * (i % 16 < 3 ? i : i - 3); });
  expect([](int i) { return __shfl_down_sync(all, 10 * i, 3); }, [](int i) { return 10 * (i > 28 ? i : i + 3); });
  expect([](int i) { return static_cast<int>(__ballot_sync(all, i % 3 == 0)); }, [](int) { return 0x49249249; });
  expect([](int i) { return __any_sync(all, i == 31) + 2 * __all_sync(all, i < 31); }, [](int) { return 1; });
  expect([](int i) { return static_cast<int>(__match_any_sync(all, i / 8)); },
         [](int i) { return static_cast<int>(0xffu << (i / 8 * 8)); });
  // The halves of a warp exchange separately, one of them more often.
  expect(
      [](int i) {
        const unsigned mine = i < 16 ? 0xffffu : 0xffff0000u;
        int x = i;
        for (int round = 0; round < (i < 16 ? 1 : 4); ++round) {
          x += __shfl_xor_sync(mine, x, 1);
          __syncwarp(mine);
        }
        return x;
      },
      [](int i) { return i < 16 ? i + (i ^ 1) : 8 * (i + (i ^ 1)); });
}

__global__ void count_in_shared(Out<int> y) {
  __shared__ int counts[3];
  if (threadIdx.x < 3) counts[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&counts[threadIdx.x % 3], 1);
  atomicMax(&counts[2], static_cast<int>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x < 3) y[blockIdx.x * 3 + threadIdx.x] = counts[threadIdx.x];
}

TEST_F(HostKernels, SupportsIntegerAtomics) {
  const View y = memory({6}, DType::i32);
  launch(context, {.x = 2, .threads = 64}, count_in_shared, out<std::int32_t>(y));
  const auto found = download<std::int32_t>(y);
  for (int b : {0, 3}) {
    EXPECT_EQ(found[static_cast<std::size_t>(b)], 22);
    EXPECT_EQ(found[static_cast<std::size_t>(b) + 1], 21);
    EXPECT_GE(found[static_cast<std::size_t>(b) + 2], 63);
  }
}

// ---- operands ----

template <class F>
__global__ void one_thread(F f) {
  f();
}
template <class F>
void run_one(Context& context, const F& f, Index blocks = 1) {
  launch(context, {.x = blocks, .threads = 1}, one_thread<F>, f);
}

TEST_F(HostKernels, DetectsUninitialisedReads) {
  const View fresh = memory({8}), y = memory({8});
  const auto x = in<float>(fresh);
  const auto o = out<float>(y);
  expect_mistake("reads element 5 of an operand f32 [8], which is uninitialised",
                 [&] { run_one(context, [=] { (void)x[5]; }); });
  expect_mistake("element 4", [&] { run_one(context, [=] { o[4] += 1; }); });
  run_one(context, [=] {
    for (Index i = 0; i < 7; ++i) o[i] = 1;
    o[3] += 1;
  });
  expect_mistake("element 7", [&] { run_one(context, [=] { (void)load<4>(o, 4); }); });
  EXPECT_EQ(download<float>(y.rows(0, 7)), (std::vector<float>{1, 1, 1, 2, 1, 1, 1}));
  expect_mistake("byte 28 of the source, which is uninitialised", [&] { download<float>(y); });
}

TEST_F(HostKernels, DetectsAccessesOutOfBounds) {
  const View all = upload(ramp(12));
  const View middle = all.rows(4, 4);  // inside of the allocation on both sides
  const auto x = in<float>(middle);
  const auto y = out<float>(middle);
  expect_mistake("reads element 4 of an operand f32 [4], outside of it",
                 [&] { run_one(context, [=] { (void)x[4]; }); });
  expect_mistake("reads element -1", [&] { run_one(context, [=] { (void)x[-1]; }); });
  expect_mistake("writes element 4", [&] { run_one(context, [=] { y[4] = 0; }); });
  expect_mistake("writes element 4", [&] { run_one(context, [=] { store<4>(y, 4, Pack<float, 4>{}); }); });
  expect_mistake("reads element -1", [&] { run_one(context, [=] { (void)(x + 2)[-3]; }); });
  run_one(context, [=] { y[0] = (y + 1)[2]; });
  const View beyond(all.bytes(), {13}, DType::f32);
  expect_mistake("reaches beyond its allocation", [&] { run_one(context, [x = in<float>(beyond)] { (void)x[0]; }); });
  float host = 0;
  expect_mistake("not in device memory",
                 [&] { run_one(context, [x = in<float>(view_of(&host, {1}))] { (void)x[0]; }); });
  expect_mistake("an empty operand", [&] { run_one(context, [x = in<float>(ConstView())] { (void)x[0]; }); });
  EXPECT_FALSE(in<float>(ConstView()));
  EXPECT_TRUE(x);
}

TEST_F(HostKernels, DetectsMisalignedPacks) {
  const View x = upload(ramp(12));
  expect_mistake("at an address that is not a multiple",
                 [&] { run_one(context, [x = in<float>(x)] { (void)load<4>(x, 2); }); });
  expect_mistake("at an address that is not a multiple",
                 [&] { run_one(context, [y = out<float>(x.rows(1, 8))] { store<2>(y, 0, Pack<float, 2>{}); }); });
  EXPECT_TRUE((aligned<float, 4>(x, 12)));
  EXPECT_FALSE((aligned<float, 4>(x.rows(1, 8), 8)));
  EXPECT_FALSE((aligned<float, 4>(x, 6)));
}

TEST_F(HostKernels, DetectsWrongOperandTypesAndWrites) {
  const View x = upload(ramp(8));
  expect_mistake("is given f32 [8] as bf16", [&] { in<bf16>(x); });
  expect_mistake(
      "as In", [&] { run_one(context, [x = in<float>(x.rows(0, 5)), y = out<float>(x.rows(4, 4))] { y[3] = x[0]; }); });
  expect_mistake("as In", [&] {
    run_one(context, [x = in<float>(x.rows(0, 5)), y = out<float>(x.rows(4, 4))] {
      y[3] = 0;
      (void)x[0];
    });
  });
  run_one(context, [x = in<float>(x.rows(0, 4)), y = out<float>(x.rows(4, 4))] { y[3] = x[0]; });
  expect_mistake("the host itself", [&] { (void)in<float>(x)[0]; });
}

TEST_F(HostKernels, DetectsUseOfFreedMemory) {
  const View x = upload(ramp(4096));
  const auto before = in<float>(x);
  ASSERT_EQ(cudaFree(x.bytes()), cudaSuccess);
  expect_mistake("has been freed", [&] { run_one(context, [=] { (void)before[0]; }); });
  expect_mistake("has been freed", [&] { download<float>(x); });
  expect_mistake("has been freed", [&] { cudaFree(x.bytes()); });
  expect_mistake("has not given", [&] { cudaFree(upload(ramp(8)).rows(1, 1).bytes()); });
}

// ---- blocks ----

TEST_F(HostKernels, DetectsConflictsBetweenBlocks) {
  const View x = memory({2});
  const auto y = out<float>(x);
  expect_mistake("writes element 1 of an operand f32 [2], which another block of the launch writes too", [&] {
    run_one(
        context, [=] { y[1] = 0; }, 2);
  });
  expect_mistake("reads element 0 of an operand f32 [2], which another block of the launch writes", [&] {
    cuda_host::set_order_seed(0);
    run_one(
        context,
        [=] {
          if (blockIdx.x == 0)
            y[0] = 1;
          else
            y[1] = y[0];
        },
        2);
  });
  // After the launch, all blocks may read it.
  run_one(
      context, [=] { y[blockIdx.x] = static_cast<float>(blockIdx.x); }, 2);
  run_one(context, [=] { y[0] += y[1]; });
  EXPECT_EQ(download<float>(x), (std::vector<float>{1, 1}));
}

__global__ void early_return(int threads) {
  if (static_cast<int>(threadIdx.x) >= threads) return;
  __syncthreads();
}
__global__ void two_barriers() {
  if (threadIdx.x < 7)
    __syncthreads();
  else
    __syncthreads();
}
__global__ void barrier_and_exchange() {
  if (threadIdx.x < 7)
    __syncthreads();
  else
    __syncwarp();
}

TEST_F(HostKernels, DetectsDivergentBarriers) {
  expect_mistake("1 threads have ended without it", [&] { launch(context, {.threads = 96}, early_return, 95); });
  expect_mistake("in divergent code", [&] { launch(context, {.threads = 32}, two_barriers); });
  expect_mistake("neither comes", [&] { launch(context, {.threads = 32}, barrier_and_exchange); });
  launch(context, {.x = 3, .threads = 96}, early_return, 96);  // the emulator works as before
}

__global__ void shuffle_after_exit(int lanes, unsigned mask) {
  if (static_cast<int>(threadIdx.x % 32) >= lanes) return;
  __shfl_xor_sync(mask, 1, 1);
}
__global__ void shuffles_apart() {
  if (threadIdx.x % 2)
    __shfl_xor_sync(0xffffffffu, 1, 1);
  else
    __shfl_xor_sync(0xffffffffu, 1, 2);
}
__global__ void read_outside(unsigned mask) {
  if (mask >> threadIdx.x & 1) __shfl_sync(mask, 1, 31);
}

TEST_F(HostKernels, DetectsDivergentShuffles) {
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    cuda_host::set_order_seed(seed);
    expect_mistake("ended", [&] { launch(context, {.threads = 32}, shuffle_after_exit, 31, 0xffffffffu); });
    expect_mistake("which has ended", [&] { launch(context, {.threads = 16}, shuffle_after_exit, 32, 0xffffffffu); });
    expect_mistake("leaves out lane", [&] { launch(context, {.threads = 32}, shuffle_after_exit, 32, 0xffffu); });
    launch(context, {.threads = 64}, shuffle_after_exit, 16, 0xffffu);
    expect_mistake("in different exchanges", [&] { launch(context, {.threads = 32}, shuffles_apart); });
    expect_mistake("reads lane 31, which takes no part",
                   [&] { launch(context, {.threads = 32}, read_outside, 0xffu); });
  }
}

// ---- shared memory ----

__global__ void shared_as_found(Out<float> y) {
  __shared__ float of_kernel[40];
  y[0] = of_kernel[39];
  y[1] = reinterpret_cast<float*>(dynamic_shared())[9];
  of_kernel[39] = 1;
}
__global__ void fill_dynamic(Index bytes) {
  for (Index i = 0; i < bytes; ++i) dynamic_shared()[i] = std::byte{1};
}
// Without the barrier, a thread may read an element that another thread has not written yet.
__global__ void reverse(Out<int> y, bool wait) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (wait) __syncthreads();
  y[threadIdx.x] = values[63 - threadIdx.x];
}

TEST_F(HostKernels, FillsSharedMemoryWithGarbage) {
  const View y = memory({2});
  for (int i = 0; i < 2; ++i) {
    launch(context, {.threads = 1, .shared_bytes = 40}, shared_as_found, out<float>(y));
    for (float v : download<float>(y)) EXPECT_TRUE(std::isnan(v));
  }
  launch(context, {.threads = 1, .shared_bytes = 101}, fill_dynamic, 101);
  expect_mistake("writes byte 101 of its 101 bytes of dynamic shared memory",
                 [&] { launch(context, {.threads = 1, .shared_bytes = 101}, fill_dynamic, 102); });
}

__global__ void read_shared(Index i, Out<float> y) {
  __shared__ float values[40];
  values[39] = 1;
  y[0] = values[i];
}

TEST_F(HostKernels, DetectsOutOfBoundsSharedArrays) {
  const View y = memory({1});
  launch(context, {.threads = 1}, read_shared, 39, out<float>(y));
  EXPECT_DEATH(launch(context, {.threads = 1}, read_shared, 40, out<float>(y)), "index 40 out of bounds");
}

TEST_F(HostKernels, ExposesMissingBarriers) {
  const View y = memory({64}, DType::i32);
  const auto correct = [&](bool wait) {
    launch(context, {.threads = 64}, reverse, out<std::int32_t>(y), wait);
    const auto found = download<std::int32_t>(y);
    for (int i = 0; i < 64; ++i)
      if (found[static_cast<std::size_t>(i)] != 63 - i) return false;
    return true;
  };
  for (const std::uint64_t seed : {0, 1, 2}) {
    cuda_host::set_order_seed(seed);
    EXPECT_TRUE(correct(true));
    EXPECT_FALSE(correct(false));
  }
}

__global__ void copy_async(In<float> x, Out<float> y, bool wait) {
  alignas(16) __shared__ float values[8];
  load_async<4>(values, x, 0);
  load_async<4>(values + 4, x, 4, false);  // beyond x
  const float early = values[0];
  if (wait) wait_async();
  y[0] = early;
  y[1] = values[0];
  y[2] = values[4];
}

TEST_F(HostKernels, RequiresAWaitForAsynchronousCopies) {
  const View x = upload(std::vector<float>{5, 6, 7, 8}), y = memory({3});
  launch(context, {.threads = 1}, copy_async, in<float>(x), out<float>(y), true);
  const auto found = download<float>(y);
  EXPECT_TRUE(std::isnan(found[0]));
  EXPECT_EQ(found[1], 5);
  EXPECT_EQ(found[2], 0);
  expect_mistake("without waiting for its copies",
                 [&] { launch(context, {.threads = 1}, copy_async, in<float>(x), out<float>(y), false); });
}

TEST_F(HostKernels, ChecksLaunchLimits) {
  const auto before = cuda_host::counters();
  launch(context, {.x = 0}, early_return, 1);
  launch(context, {.x = 5, .y = 7, .threads = 64}, early_return, 64);
  EXPECT_EQ(cuda_host::counters().launches - before.launches, 1);
  expect_mistake("has no __launch_bounds__", [&] { launch(context, {.threads = 257}, early_return, 257); });
  launch(context, {.threads = 256}, early_return, 256);
  expect_mistake("of blocks of 1025 threads", [&] { launch(context, {.threads = 1025}, early_return, 1); });
  expect_mistake("300000 bytes of dynamic shared memory",
                 [&] { launch(context, {.threads = 32, .shared_bytes = 300000}, early_return, 32); });
}

// Sets the driver's default, whatever the environment of this program says.
[[maybe_unused]] const int lazy = setenv("CUDA_MODULE_LOADING", "LAZY", 1);

__global__ void launched_here() {}

TEST_F(HostKernels, AreLoadedAtTheirFirstLaunch) {
  const auto allocate_all = [&] {
    const auto before = cuda_host::counters().library_bytes;
    launch(context, {.threads = 1}, launched_here);
    return cuda_host::counters().library_bytes - before;
  };
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  void* rest = nullptr;
  ASSERT_EQ(cudaMalloc(&rest, free), cudaSuccess);
  EXPECT_THROW(allocate_all(), Failure);
  cudaFree(rest);
  EXPECT_EQ(allocate_all(), 1 << 20);
  EXPECT_EQ(allocate_all(), 0);
}

TEST_F(HostKernels, NamesTheLaunchInErrors) {
  const View x = memory({1});
  expect_mistake("test_kernels.cpp", [&] { run_one(context, [x = in<float>(x)] { (void)x[0]; }); });
  expect_mistake("block (0, 0), thread 0", [&] { run_one(context, [x = in<float>(x)] { (void)x[0]; }); });
}

TEST(HostKernelsDeathTest, EndsTheProcessAtAnError) {
  EXPECT_DEATH(cudaFree(reinterpret_cast<void*>(16)), "^cuda_host: cudaFree of memory that cudaMalloc has not given\n");
}

// ---- numbers ----

TEST(HostNumbers, ConvertsBf16LikeTheDevice) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const bf16 x = __ushort_as_bfloat16(static_cast<std::uint16_t>(bits));
    const float value = __bfloat162float(x);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(__float2bfloat16(value))));
      continue;
    }
    EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16(value)), bits);
    if ((bits & 0x7f80) == 0x7f80) continue;  // infinity
    const float next = std::bit_cast<float>((static_cast<std::uint32_t>(bits) + 1) << 16);
    const float half = value + (next - value) / 2;  // halfway: rounds to the even one
    if (std::isinf(next)) continue;
    EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16(half)), bits % 2 ? bits + 1 : bits);
  }
}

}  // namespace
}  // namespace sy::cuda
