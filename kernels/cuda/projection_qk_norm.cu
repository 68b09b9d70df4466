// QK-norm over the whole projection.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/qk_norm.h"

namespace sy::cuda {

namespace {

// A block sums x * y over the queries of its token, and over the keys. An element of these costs 2w
// bytes and 2 FLOPs.
template <class T, int N>
__global__ void projection_sums(Index row, Index queries, Index keys, In<T> x, In<T> y, Out<float> sums) {
  const Index token = blockIdx.x;
  for (int of = 0; of < 2; ++of) {
    const Index at = token * row + of * queries;
    float sum = 0;
    for_row<N>(of ? keys : queries, [&](Index i) {
      const auto a = load<N>(x, at + i), b = load<N>(y, at + i);
      for (int e = 0; e < N; ++e) sum += to_float(a[e]) * to_float(b[e]);
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[2 * token + of] = sum;
  }
}

// 1 / root mean square of the queries (of = 0) or the keys (1) of a token.
__device__ inline float projection_inverse(const ProjectionQkNorm& d, In<float> squares, Index token, int of) {
  return 1 / sqrtf(squares[2 * token + of] / static_cast<float>(of ? d.all_keys : d.all_queries) + d.eps);
}

// A block takes a token. An element costs 2w bytes and 2 FLOPs.
template <class T, int N>
__global__ void projection_normalize(ProjectionQkNorm d, Index row, In<T> x, In<T> weight, In<float> squares,
                                     Out<T> y) {
  const Index token = blockIdx.x, normed = d.queries + d.keys;
  const float of_queries = projection_inverse(d, squares, token, 0), of_keys = projection_inverse(d, squares, token, 1);
  for_row<N>(row, [&](Index i) {
    auto pack = load<N>(x, token * row + i);
    if (i < normed) {
      const auto w = load<N>(weight, i);
      const float r = i < d.queries ? of_queries : of_keys;
      for (int e = 0; e < N; ++e) pack[e] = from_float<T>(to_float(pack[e]) * r * (d.offset + to_float(w[e])));
    }
    store<N>(y, token * row + i, pack);
  });
}

// A thread takes a pack of columns of every gridDim.x-th token. It writes the sums of dy x r to
// partial: [gridDim.x, queries + keys]. An element costs 3w bytes and 7 FLOPs.
template <class T, int N>
__global__ void projection_gradient(ProjectionQkNorm d, Index tokens, Index row, In<T> dy, In<T> x, In<T> weight,
                                    In<float> squares, In<float> products, Out<T> dx, Out<float> partial) {
  const Index i = (Index{blockIdx.y} * blockDim.x + threadIdx.x) * N, normed = d.queries + d.keys;
  if (i >= row) return;
  const int of = i >= d.queries;
  const float all = static_cast<float>(of ? d.all_keys : d.all_queries);
  float w[N] = {}, sums[N] = {};
  if (i < normed) {
    const auto pack = load<N>(weight, i);
    for (int e = 0; e < N; ++e) w[e] = d.offset + to_float(pack[e]);
  }
  for (Index t = blockIdx.x; t < tokens; t += gridDim.x) {
    auto g = load<N>(dy, t * row + i);
    if (i < normed) {
      const auto in = load<N>(x, t * row + i);
      const float r = projection_inverse(d, squares, t, of), inner = products[2 * t + of] / all;
      for (int e = 0; e < N; ++e) {
        const float ge = to_float(g[e]), normal = to_float(in[e]) * r;
        sums[e] += ge * normal;
        g[e] = from_float<T>(r * (ge * w[e] - normal * inner));
      }
    }
    store<N>(dx, t * row + i, g);
  }
  if (i < normed)
    for (int e = 0; e < N; ++e) partial[blockIdx.x * normed + i + e] = sums[e];
}

// Width of rows for with_packs: queries and keys must both end at a pack.
Index projection_width(const ProjectionQkNorm& d, ConstView x) {
  constexpr Index max_pack = 8;
  return d.queries % max_pack == 0 && d.keys % max_pack == 0 ? x.dim(1) : 1;
}

}  // namespace

void execute(CudaDevice& device, const ops::ProjectionQkNormSums& op) {
  with_type_and_packs(projection_width(op.desc, op.x), {op.x, op.y}, [&]<class T, int N>(T, PackSize<N>) {
    launch(device.context(), {.x = op.x.dim(0), .threads = row_threads(blocks_of(op.desc.queries, N))},
           projection_sums<T, N>, op.x.dim(1), op.desc.queries, op.desc.keys, op.x, op.y, op.sums);
  });
}

void execute(CudaDevice& device, const ops::ProjectionQkNormForward& op) {
  with_type_and_packs(projection_width(op.desc, op.x), {op.x, op.weight, op.y}, [&]<class T, int N>(T, PackSize<N>) {
    launch(device.context(), {.x = op.x.dim(0), .threads = row_threads(blocks_of(op.x.dim(1), N))},
           projection_normalize<T, N>, op.desc, op.x.dim(1), op.x, op.weight, op.squares, op.y);
  });
}

void execute(CudaDevice& device, const ops::ProjectionQkNormBackward& op) {
  Context& context = device.context();
  const Index tokens = op.x.dim(0), row = op.x.dim(1), normed = op.desc.queries + op.desc.keys;
  with_type_and_packs(projection_width(op.desc, op.x), {op.dy, op.x, op.weight, op.dx},
                      [&]<class T, int N>(T, PackSize<N>) {
                        const int threads = row_threads(blocks_of(row, N));
                        const Index columns = blocks_of(row, Index{threads} * N);
                        const Index max_blocks = context.workspace_bytes / 2 / (normed * size_of(DType::f32));
                        const Index blocks = std::min({tokens, max_blocks, std::max<Index>(1, sum_blocks / columns)});
                        SY_ASSERT(blocks > 0, "projection_qk_norm_backward: rows of {}", row);
                        Workspace workspace(context);
                        const View partial = workspace.take({blocks, normed}, DType::f32);
                        launch(context, {.x = blocks, .y = columns, .threads = threads}, projection_gradient<T, N>,
                               op.desc, tokens, row, op.dy, op.x, op.weight, op.squares, op.products, op.dx, partial);
                        add_column_sums(context, workspace, partial, op.dweight);
                      });
}

}  // namespace sy::cuda
