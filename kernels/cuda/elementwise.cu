// Element-wise operations.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/elementwise.h"

namespace sy::cuda {

namespace {

// An element costs 4 bytes.
struct Fill {
  float value;
  Out<float> x;
  template <int N>
  __device__ void at(Index i) const {
    store<N>(x, i, pack_of<float, N>([&](int) { return value; }));
  }
};

// An element costs 6 bytes.
template <class From, class To>
struct Convert {
  In<From> x;
  Out<To> y;
  template <int N>
  __device__ void at(Index i) const {
    const auto from = load<N>(x, i);
    store<N>(y, i, pack_of<To, N>([&](int e) { return to_float(from[e]); }));
  }
};

// An element costs 3w bytes and 1 FLOP.
template <class T>
struct Add {
  In<T> x;
  Out<T> y;
  template <int N>
  __device__ void at(Index i) const {
    const auto more = load<N>(x, i), sum = load<N>(y, i);
    store<N>(y, i, pack_of<T, N>([&](int e) { return to_float(sum[e]) + to_float(more[e]); }));
  }
};

// An element costs 2w bytes and 1 FLOP.
template <class T>
struct Scale {
  float factor;
  Out<T> x;
  template <int N>
  __device__ void at(Index i) const {
    const auto pack = load<N>(x, i);
    store<N>(x, i, pack_of<T, N>([&](int e) { return to_float(pack[e]) * factor; }));
  }
};

// Each block sums every gridDim.x-th chunk of blockDim.x packs of x: [n] into partial[blockIdx.x].
// An element costs 4 bytes and 2 FLOPs in f64.
template <int N>
__global__ void sum_of_squares(Index n, In<float> x, Out<double> partial) {
  double sum = 0;
  const Index step = Index{gridDim.x} * blockDim.x * N;
  for (Index i = (Index{blockIdx.x} * blockDim.x + threadIdx.x) * N; i < n; i += step)
    if (i + N <= n) {
      const auto pack = load<N>(x, i);
      for (int e = 0; e < N; ++e) sum += static_cast<double>(pack[e]) * pack[e];
    } else {
      for (Index j = i; j < n; ++j) sum += static_cast<double>(x[j]) * x[j];
    }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__device__ inline unsigned bits_of(float x) {
  return __float_as_uint(x);
}
__device__ inline unsigned bits_of(bf16 x) {
  return __bfloat16_as_ushort(x);
}
// Each block sums the bits of every gridDim.x-th chunk of blockDim.x elements of x: [n] into
// partial[blockIdx.x]. An element costs 4 bytes, 2 in bf16.
template <class T>
__global__ void sum_of_bits(Index n, In<T> x, Out<std::int32_t> partial) {
  unsigned sum = 0;
  const Index step = Index{gridDim.x} * blockDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) sum += bits_of(x[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = static_cast<std::int32_t>(sum);
}

// Blocks of a sum over n elements. Their number, and so the order of the sum, depends on n alone.
Grid grid_of_sum(Index n) {
  constexpr Index elements_per_thread = 16, max_blocks = 1024;
  Grid grid;
  grid.x = std::min(blocks_of(n, grid.threads * elements_per_thread), max_blocks);
  return grid;
}

}  // namespace

void execute(CudaDevice& device, const ops::Fill& op) {
  const View x = op.x;
  if (op.value == 0)
    device.context().stream.enqueue(
        [&](cudaStream_t stream) { check(cudaMemsetAsync(x.bytes(), 0, x.size_bytes(), stream), "cudaMemsetAsync"); },
        x.bytes(), x.size_bytes());
  else
    for_elements(device.context(), x.elements(), {x}, Fill{op.value, out<float>(x)});
}

void execute(CudaDevice& device, const ops::Copy& op) {
  const auto bytes = static_cast<std::size_t>(op.x.size_bytes());
  device.context().stream.enqueue(
      [&](cudaStream_t stream) {
        check(cudaMemcpyAsync(op.y.bytes(), op.x.bytes(), bytes, cudaMemcpyDeviceToDevice, stream),
              "a copy on the GPU");
      },
      op.y.bytes(), op.x.bytes(), bytes);
}

void execute(CudaDevice& device, const ops::Convert& op) {
  const ConstView x = op.x;
  const View y = op.y;
  if (x.dtype() == DType::bf16)
    for_elements(device.context(), x.elements(), {x, y}, Convert<bf16, float>{in<bf16>(x), out<float>(y)});
  else
    for_elements(device.context(), x.elements(), {x, y}, Convert<float, bf16>{in<float>(x), out<bf16>(y)});
}

void execute(CudaDevice& device, const ops::Add& op) {
  with_type(op.x.dtype(), [&]<class T>(T) {
    for_elements(device.context(), op.x.elements(), {op.x, op.y}, Add<T>{in<T>(op.x), out<T>(op.y)});
  });
}

void execute(CudaDevice& device, const ops::Scale& op) {
  with_type(op.x.dtype(), [&]<class T>(T) {
    for_elements(device.context(), op.x.elements(), {op.x}, Scale<T>{op.factor, out<T>(op.x)});
  });
}

void execute(CudaDevice& device, const ops::SumSquares& op) {
  const Index n = op.x.elements();
  const Grid grid = grid_of_sum(n);
  const View partial = Workspace(device.context()).take({grid.x}, DType::f64);
  with_packs<4>(0, {op.x},
                [&]<int N>(PackSize<N>) { launch(device.context(), grid, sum_of_squares<N>, n, op.x, partial); });
  launch(device.context(), {}, add_sum<double, double>, grid.x, partial, op.out);
}

void execute(CudaDevice& device, const ops::BitSum& op) {
  const Index n = op.x.elements();
  const Grid grid = grid_of_sum(n);
  const View partial = Workspace(device.context()).take({grid.x}, DType::i32);
  with_type(op.x.dtype(), [&]<class T>(T) { launch(device.context(), grid, sum_of_bits<T>, n, op.x, partial); });
  launch(device.context(), {}, add_sum<std::int32_t, unsigned>, grid.x, partial, op.out);
}

}  // namespace sy::cuda
