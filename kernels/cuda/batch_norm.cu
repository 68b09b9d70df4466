// Batch normalisation.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/formulas/batch_norm.h"
#include "kernels/ops/batch_norm.h"

namespace sy::cuda {

namespace {

// A block sums a chunk of rows, those from chunk * blockIdx.y on, in 32 columns. The warps' sums
// are added in order. total: [gridDim.y, 2, width]
//   forward: sums of x and x^2 over the rows of the mask; an element costs w bytes and 3 FLOPs
//   gradient: sums of dy and dy * n over all rows; an element costs 2w bytes and 5 FLOPs
template <class T, bool gradient>
__global__ void __launch_bounds__(sum_threads)
    sum_column_pairs(Index rows, Index width, Index chunk, In<T> x, In<T> dy, In<float> moments, In<std::int32_t> mask,
                     Out<double> total) {
  __shared__ double sums[2][row_warps][warp_size];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  const Index column = Index{blockIdx.x} * warp_size + lane, begin = blockIdx.y * chunk;
  const Index end = begin + chunk < rows ? begin + chunk : rows;
  double first = 0, second = 0;
  if (column < width) {
    const float mean = gradient ? moments[column] : 0, inverse = gradient ? moments[width + column] : 0;
    for (Index row = begin + warp; row < end; row += row_warps) {
      if (!gradient && mask && mask[row] == 0) continue;
      const float value = to_float(x[row * width + column]);
      if constexpr (gradient) {
        const float g = to_float(dy[row * width + column]);
        first += static_cast<double>(g);
        second += static_cast<double>(g * ((value - mean) * inverse));
      } else {
        first += static_cast<double>(value);
        second += static_cast<double>(value) * static_cast<double>(value);
      }
    }
  }
  sums[0][warp][lane] = first;
  sums[1][warp][lane] = second;
  __syncthreads();
  if (warp >= 2 || column >= width) return;
  double all = 0;
  for (int w = 0; w < row_warps; ++w) all += sums[warp][w][lane];
  total[(blockIdx.y * 2 + warp) * width + column] = all;
}

// sums: [2, width] = sums of partial: [chunks, 2, width]. The gradients may be empty.
__global__ void add_chunks(Index chunks, Index width, In<double> partial, Out<double> sums, Out<float> dweight,
                           Out<float> dbias) {
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= 2 * width) return;
  double sum = 0;
  for (Index chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * 2 * width + i];
  sums[i] = sum;
  if (i < width && dbias) dbias[i] += static_cast<float>(sum);
  if (i >= width && dweight) dweight[i - width] += static_cast<float>(sum);
}

// count: [1] = number of real tokens
__global__ void count_tokens(Index rows, In<std::int32_t> mask, Out<double> count) {
  int real = 0;
  for (Index row = threadIdx.x; mask && row < rows; row += blockDim.x) real += mask[row] != 0;
  real = block_sum(real);
  if (threadIdx.x == 0) count[0] = mask ? real : static_cast<double>(rows);
}

// A thread computes a column, which costs 44 bytes and 13 FLOPs.
__global__ void moments_kernel(Index width, float eps, float momentum, In<double> sums, Out<float> averages,
                               Out<float> moments) {
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= width) return;
  const double count = sums ? sums[2 * width] : 0, factor = count > 0 ? 1 / count : 0;
  const formulas::ColumnMoments m =
      sums ? formulas::column_moments(sums[i], sums[width + i], factor)
           : formulas::ColumnMoments{static_cast<double>(averages[i]), static_cast<double>(averages[width + i])};
  moments[i] = static_cast<float>(m.mean);
  moments[width + i] = static_cast<float>(1 / sqrt(m.variance + static_cast<double>(eps)));
  if (i == 0) moments[2 * width] = static_cast<float>(factor);
  if (!averages || count < 2) return;
  const double weight = static_cast<double>(momentum);
  averages[i] = formulas::running_average(averages[i], m.mean, weight);
  averages[width + i] = formulas::running_average(averages[width + i], formulas::unbiased_variance(m, count), weight);
}

// A block takes a row of x: [T, width]. An element costs 2w bytes and 3 FLOPs, and 1 more with a
// bias.
template <class T, int N>
__global__ void normalize_columns(Index width, In<T> x, In<T> weight, In<T> bias, In<float> moments, Out<T> y) {
  const Index start = blockIdx.x * width;
  for_row<N>(width, [&](Index i) {
    const auto pack = load<N>(x, start + i), w = load<N>(weight, i);
    float values[N];
    for (int e = 0; e < N; ++e)
      values[e] = (to_float(pack[e]) - moments[i + e]) * moments[width + i + e] * to_float(w[e]);
    if (bias) {
      const auto b = load<N>(bias, i);
      for (int e = 0; e < N; ++e) values[e] += to_float(b[e]);
    }
    store<N>(y, start + i, pack_of<T, N>([&](int e) { return values[e]; }));
  });
}

// A block takes a row. An element costs 4w bytes and 11 FLOPs.
template <class T, int N>
__global__ void column_norm_gradient(Index width, In<T> dy, In<T> x, In<T> weight, In<float> moments, In<double> sums,
                                     In<std::int32_t> mask, Out<T> dx) {
  const Index row = blockIdx.x, start = row * width;
  const double factor = mask && mask[row] == 0 ? 0 : static_cast<double>(moments[2 * width]);
  for_row<N>(width, [&](Index i) {
    const auto g = load<N>(dy, start + i), in = load<N>(x, start + i), w = load<N>(weight, i);
    auto d = load<N>(dx, start + i);
    for (int e = 0; e < N; ++e) {
      const float inverse = moments[width + i + e], n = (to_float(in[e]) - moments[i + e]) * inverse;
      const float mean_dy = static_cast<float>(sums[i + e] * factor),
                  mean_dy_n = static_cast<float>(sums[width + i + e] * factor);
      d[e] = from_float<T>(to_float(d[e]) + to_float(w[e]) * inverse * (to_float(g[e]) - mean_dy - n * mean_dy_n));
    }
    store<N>(dx, start + i, d);
  });
}

// sums: [2, width] f64 of the columns of x, or of those of dy if it is not empty.
void sum_pairs(Context& context, ConstView x, ConstView dy, ConstView moments, ConstView mask, View sums, View dweight,
               View dbias) {
  const Index rows = x.dim(0), width = x.dim(1), column_blocks = blocks_of(width, warp_size);
  const Index chunks = row_chunks(rows, column_blocks);
  Workspace workspace(context);
  const View partial = workspace.take({chunks, 2, width}, DType::f64);
  with_type(x.dtype(), [&]<class T>(T) {
    launch(context, {.x = column_blocks, .y = chunks, .threads = sum_threads},
           dy ? sum_column_pairs<T, true> : sum_column_pairs<T, false>, rows, width, blocks_of(rows, chunks), x, dy,
           moments, mask, partial);
  });
  launch(context, {.x = blocks_of(2 * width, Grid{}.threads)}, add_chunks, chunks, width, partial, sums, dweight,
         dbias);
}

}  // namespace

void execute(CudaDevice& device, const ops::BatchNormSums& op) {
  const Index width = op.x.dim(1);
  sum_pairs(device.context(), op.x, {}, {}, op.mask, op.sums.rows(0, 2 * width), {}, {});
  launch(device.context(), {}, count_tokens, op.x.dim(0), op.mask, op.sums.rows(2 * width, 1));
}

void execute(CudaDevice& device, const ops::BatchNormMoments& op) {
  const Index width = op.moments.dim(0) / 2;
  launch(device.context(), {.x = blocks_of(width, Grid{}.threads)}, moments_kernel, width, op.eps, op.momentum, op.sums,
         op.averages, op.moments);
}

void execute(CudaDevice& device, const ops::BatchNormForward& op) {
  const Index width = op.x.dim(1);
  with_type_and_packs(width, {op.x, op.weight, op.bias, op.y}, [&]<class T, int N>(T, PackSize<N>) {
    launch(device.context(), {.x = op.x.dim(0), .threads = row_threads(blocks_of(width, N))}, normalize_columns<T, N>,
           width, op.x, op.weight, op.bias, op.moments, op.y);
  });
}

void execute(CudaDevice& device, const ops::BatchNormGradientSums& op) {
  sum_pairs(device.context(), op.x, op.dy, op.moments, {}, op.sums, op.dweight, op.dbias);
}

void execute(CudaDevice& device, const ops::BatchNormBackward& op) {
  const Index width = op.x.dim(1);
  with_type_and_packs(width, {op.dy, op.x, op.weight, op.dx}, [&]<class T, int N>(T, PackSize<N>) {
    launch(device.context(), {.x = op.x.dim(0), .threads = row_threads(blocks_of(width, N))},
           column_norm_gradient<T, N>, width, op.dy, op.x, op.weight, op.moments, op.sums, op.mask, op.dx);
  });
}

}  // namespace sy::cuda
