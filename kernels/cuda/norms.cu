// RMSNorm, LayerNorm and biases.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/bias.h"
#include "kernels/ops/norm.h"

namespace sy::cuda {

namespace {

// A block takes a row of x: [T, width]. It sums the row for the mean (LayerNorm only), sums the
// squares of the differences, and writes y. After the first pass the row is in a cache. An element
// costs 2w bytes and 7 FLOPs, 8 for LayerNorm, and 1 more with a bias.
template <class T, int N, bool centred>
__global__ void norm_rows(Index width, float eps, float offset, In<T> x, In<T> weight, In<T> bias, Out<T> y,
                          Out<float> moments) {
  const Index row = blockIdx.x, start = row * width;
  float mean = 0, squares = 0;
  if constexpr (centred) {
    for_row<N>(width, [&](Index i) {
      const auto pack = load<N>(x, start + i);
      for (int e = 0; e < N; ++e) mean += to_float(pack[e]);
    });
    mean = block_sum(mean) / width;
  }
  for_row<N>(width, [&](Index i) {
    const auto pack = load<N>(x, start + i);
    for (int e = 0; e < N; ++e) squares += (to_float(pack[e]) - mean) * (to_float(pack[e]) - mean);
  });
  const float inverse = 1 / sqrtf(block_sum(squares) / width + eps);
  for_row<N>(width, [&](Index i) {
    const auto pack = load<N>(x, start + i), w = load<N>(weight, i);
    float values[N];
    for (int e = 0; e < N; ++e) values[e] = (to_float(pack[e]) - mean) * inverse * (offset + to_float(w[e]));
    if (bias) {
      const auto b = load<N>(bias, i);
      for (int e = 0; e < N; ++e) values[e] += to_float(b[e]);
    }
    store<N>(y, start + i, pack_of<T, N>([&](int e) { return values[e]; }));
  });
  if (threadIdx.x == 0) {
    moments[2 * row] = mean;
    moments[2 * row + 1] = inverse;
  }
}

// With n = (x - mean) * inverse and dn = dy * (offset + weight):
//   dx += inverse * (dn - mean(dn) - n * mean(dn * n)),   without mean(dn) for RMSNorm,
//   dweight += sum_t dy * n,   dbias += sum_t dy.
//
// A block takes every gridDim.x-th row and holds its sums for dweight and dbias in shared memory.
// The sums, [gridDim.x, width], are added later. If shared memory does not hold a row, blocks along
// y share the columns, `slice` each. Each of them computes the means over the whole row. An element
// costs 4w bytes and 17 FLOPs, 18 for LayerNorm, and 1 more with a bias.
template <class T, int N, bool centred, bool biased>
__global__ void norm_gradient(Index rows, Index width, Index slice, float offset, In<T> dy, In<T> x, In<T> weight,
                              In<float> moments, Out<T> dx, Out<float> dweight, Out<float> dbias) {
  const Index begin = blockIdx.y * slice, columns = width - begin < slice ? width - begin : slice;
  // Element e of pack p is at e * packs + p, so that neighbouring threads use neighbouring words.
  const Index packs = slice / N;
  float* const weight_sums = reinterpret_cast<float*>(dynamic_shared());
  float* const bias_sums = weight_sums + slice;
  for_row<N>(columns, [&](Index i) {
    for (int e = 0; e < N; ++e) {
      weight_sums[e * packs + i / N] = 0;
      if (biased) bias_sums[e * packs + i / N] = 0;
    }
  });
  for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
    const Index start = row * width;
    const float mean = moments[2 * row], inverse = moments[2 * row + 1];
    float mean_dn = 0, mean_dn_n = 0;
    for_row<N>(width, [&](Index i) {
      const auto g = load<N>(dy, start + i), in = load<N>(x, start + i), w = load<N>(weight, i);
      for (int e = 0; e < N; ++e) {
        const float dn = to_float(g[e]) * (offset + to_float(w[e]));
        if (centred) mean_dn += dn;
        mean_dn_n += dn * ((to_float(in[e]) - mean) * inverse);
      }
    });
    if (centred) mean_dn = block_sum(mean_dn) / width;
    mean_dn_n = block_sum(mean_dn_n) / width;
    for_row<N>(columns, [&](Index i) {
      const Index at = start + begin + i;
      const auto g = load<N>(dy, at), in = load<N>(x, at), w = load<N>(weight, begin + i);
      auto d = load<N>(dx, at);
      for (int e = 0; e < N; ++e) {
        const float ge = to_float(g[e]), n = (to_float(in[e]) - mean) * inverse;
        d[e] = from_float<T>(to_float(d[e]) + inverse * (ge * (offset + to_float(w[e])) - mean_dn - n * mean_dn_n));
        weight_sums[e * packs + i / N] += ge * n;
        if (biased) bias_sums[e * packs + i / N] += ge;
      }
      store<N>(dx, at, d);
    });
  }
  for_row<N>(columns, [&](Index i) {
    const Index at = blockIdx.x * width + begin + i;
    for (int e = 0; e < N; ++e) {
      dweight[at + e] = weight_sums[e * packs + i / N];
      if (biased) dbias[at + e] = bias_sums[e * packs + i / N];
    }
  });
}

// A block adds bias: [width] to its row of y: [T, width]. An element costs 2w bytes and 1 FLOP.
template <class T, int N>
__global__ void add_bias(Index width, In<T> bias, Out<T> y) {
  const Index start = blockIdx.x * width;
  for_row<N>(width, [&](Index i) {
    const auto more = load<N>(bias, i), pack = load<N>(y, start + i);
    store<N>(y, start + i, pack_of<T, N>([&](int e) { return to_float(pack[e]) + to_float(more[e]); }));
  });
}

// Expert that owns row `row`. offsets: [experts + 1]
__device__ Index expert_of(In<std::int32_t> offsets, Index experts, Index row) {
  return partition_point(Index{0}, experts, [&](Index e) { return offsets[e + 1] <= row; });
}

// A block adds bias: [experts, n] to columns [first, first + n) of its row of y: [R, width]. An
// element costs 2w bytes and 2 FLOPs.
template <class T>
__global__ void add_expert_bias(Index experts, Index n, Index first, Index width, In<std::int32_t> offsets, In<T> bias,
                                In<float> row_scale, Out<T> y) {
  const Index row = blockIdx.x, e = expert_of(offsets, experts, row);
  const float scale = row_scale ? row_scale[row] : 1.0f;
  for_row<1>(n, [&](Index i) {
    const Index at = row * width + first + i;
    y[at] = from_float<T>(to_float(y[at]) + scale * to_float(bias[e * n + i]));
  });
}

// A block takes 32 columns of expert blockIdx.y's rows of dy: [R, width], and its warps share the
// rows. dbias: [experts, n] += the sums. An element costs w bytes and 2 FLOPs.
template <class T>
__global__ void expert_bias_gradient(Index n, Index first, Index width, In<std::int32_t> offsets, In<T> dy,
                                     In<float> row_scale, Out<float> dbias) {
  constexpr int max_warps = 8;
  __shared__ float sums[max_warps][warp_size];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size, warps = blockDim.x / warp_size;
  const Index e = blockIdx.y, column = Index{blockIdx.x} * warp_size + lane;
  float sum = 0;
  if (column < n)
    for (Index row = offsets[e] + warp; row < offsets[e + 1]; row += warps)
      sum += (row_scale ? row_scale[row] : 1.0f) * to_float(dy[row * width + first + column]);
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= n) return;
  for (int w = 1; w < warps; ++w) sum += sums[w][lane];
  dbias[e * n + column] += sum;
}

// A block takes a row of dy: [R, width]. drow_scale: [R] += its product with the expert's bias. An
// element costs w bytes and 2 FLOPs.
template <class T>
__global__ void expert_bias_scale_gradient(Index experts, Index n, Index first, Index width, In<std::int32_t> offsets,
                                           In<T> dy, In<T> bias, Out<float> drow_scale) {
  const Index row = blockIdx.x, e = expert_of(offsets, experts, row);
  float sum = 0;
  for_row<1>(n, [&](Index i) { sum += to_float(dy[row * width + first + i]) * to_float(bias[e * n + i]); });
  sum = block_sum(sum);
  if (threadIdx.x == 0) drow_scale[row] += sum;
}

}  // namespace

void execute(CudaDevice& device, const ops::GroupedBiasForward& op) {
  const Index n = op.bias.dim(1);
  with_type(op.y.dtype(), [&]<class T>(T) {
    launch(device.context(), {.x = op.y.dim(0), .threads = row_threads(n)}, add_expert_bias<T>, op.bias.dim(0), n,
           op.first, op.y.dim(1), op.groups.offsets, op.bias, op.row_scale, op.y);
  });
}

void execute(CudaDevice& device, const ops::GroupedBiasBackward& op) {
  const Index experts = op.bias.dim(0), n = op.bias.dim(1), width = op.dy.dim(1);
  with_type(op.dy.dtype(), [&]<class T>(T) {
    launch(device.context(), {.x = blocks_of(n, warp_size), .y = experts}, expert_bias_gradient<T>, n, op.first, width,
           op.groups.offsets, op.dy, op.row_scale, op.dbias);
    if (!op.drow_scale) return;
    launch(device.context(), {.x = op.dy.dim(0), .threads = row_threads(n)}, expert_bias_scale_gradient<T>, experts, n,
           op.first, width, op.groups.offsets, op.dy, op.bias, op.drow_scale);
  });
}

void execute(CudaDevice& device, const ops::BiasForward& op) {
  const Index width = op.y.dim(1);
  with_type_and_packs(width, {op.bias, op.y}, [&]<class T, int N>(T, PackSize<N>) {
    launch(device.context(), {.x = op.y.dim(0), .threads = row_threads(blocks_of(width, N))}, add_bias<T, N>, width,
           op.bias, op.y);
  });
}

void execute(CudaDevice& device, const ops::BiasBackward& op) {
  Workspace workspace(device.context());
  add_column_sums(device.context(), workspace, op.dy, op.dbias);
}

void execute(CudaDevice& device, const ops::NormForward& op) {
  const Index width = op.x.dim(1);
  with_type_and_packs(width, {op.x, op.weight, op.bias, op.y}, [&]<class T, int N>(T, PackSize<N>) {
    with_flag(op.desc.kind == NormKind::layernorm, [&](auto centred) {
      launch(device.context(), {.x = op.x.dim(0), .threads = row_threads(blocks_of(width, N))},
             norm_rows<T, N, centred>, width, op.desc.eps, op.desc.offset, op.x, op.weight, op.bias, op.y, op.moments);
    });
  });
}

void execute(CudaDevice& device, const ops::NormBackward& op) {
  Context& context = device.context();
  // With this many columns, the sums leave shared memory for several blocks.
  constexpr Index max_threads = sum_blocks * 256, max_columns = 12288;
  const Index rows = op.x.dim(0), width = op.x.dim(1);
  const int sums = op.dbias ? 2 : 1;
  Workspace workspace(context);
  with_type_and_packs(width, {op.dy, op.x, op.weight, op.dx}, [&]<class T, int N>(T, PackSize<N>) {
    const Index slices = blocks_of(width, max_columns), slice = blocks_of(blocks_of(width, slices), N) * N;
    const int threads = row_threads(blocks_of(width, N));
    const Index max_blocks = context.workspace_bytes / 2 / (sums * width * size_of(DType::f32));
    const Index blocks = std::min({rows, max_blocks, max_threads / threads});
    SY_ASSERT(blocks > 0, "norm_backward: rows of {}", width);
    const View weight_sums = workspace.take({blocks, width}, DType::f32);
    const View bias_sums = op.dbias ? workspace.take({blocks, width}, DType::f32) : View{};
    with_flag(op.desc.kind == NormKind::layernorm, [&](auto centred) {
      with_flag(op.dbias.present(), [&](auto biased) {
        launch(context,
               {.x = blocks, .y = slices, .threads = threads, .shared_bytes = sums * slice * size_of(DType::f32)},
               norm_gradient<T, N, centred, biased>, rows, width, slice, op.desc.offset, op.dy, op.x, op.weight,
               op.moments, op.dx, weight_sums, bias_sums);
      });
    });
    add_column_sums(context, workspace, weight_sums, op.dweight);
    if (op.dbias) add_column_sums(context, workspace, bias_sums, op.dbias);
  });
}

}  // namespace sy::cuda
