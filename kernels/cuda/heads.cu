// Copies and sums of head columns (batched head GEMMs are in gemm.cu).

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/heads.h"

namespace sy::cuda {

namespace {

using namespace attention;

// Index of the vector of the first head of a block's position. A block takes one position of one
// sequence.
template <class P>
__device__ Index first_vector(const HeadsOf<P>& x) {
  const Index position = blockIdx.x;
  return position / x.positions * x.sequence_stride + position % x.positions * x.token_stride;
}

// step: distance between heads of x; 0 if x has one head. An element of y costs 2w bytes.
template <class T, int N>
__global__ void broadcast_heads_kernel(Index heads, Index step, const InHeads<T> x, const OutHeads<T> y) {
  const Index from = first_vector(x), to = first_vector(y), packs = y.width / N;
  for_row<1>(heads * packs, [&](Index i) {
    const Index head = i / packs, c = i % packs * N;
    store(y.x, to + head * y.head_stride + c, load<N>(x.x, from + head * step + c));
  });
}

// A thread sums the heads of its columns in their order. An element of x costs w bytes and 1 FLOP.
template <class T, int N>
__global__ void reduce_heads_kernel(Index heads, const InHeads<T> x, const OutHeads<T> y) {
  const Index from = first_vector(x), to = first_vector(y);
  for_row<N>(y.width, [&](Index c) {
    float sum[N] = {};
    for (Index head = 0; head < heads; ++head) {
      const auto pack = load<N>(x.x, from + head * x.head_stride + c);
      for (int e = 0; e < N; ++e) sum[e] += to_float(pack[e]);
    }
    store(y.x, to + c, pack_of<T, N>([&](int e) { return sum[e]; }));
  });
}

}  // namespace

void execute(CudaDevice& device, const ops::BroadcastHeads& op) {
  const ConstHeads& x = op.x;
  const Heads& y = op.y;
  with_type_and_packs(x, y, [&]<class T, int N>(T, PackSize<N>) {
    launch(device.context(), {.x = y.sequences * y.positions, .threads = row_threads(y.heads * y.width / N)},
           broadcast_heads_kernel<T, N>, y.heads, x.heads == 1 ? Index{0} : x.head_stride, x, y);
  });
}

void execute(CudaDevice& device, const ops::ReduceHeads& op) {
  const ConstHeads& x = op.x;
  const Heads& y = op.y;
  with_type_and_packs(x, y, [&]<class T, int N>(T, PackSize<N>) {
    launch(device.context(), {.x = y.sequences * y.positions, .threads = row_threads(y.width / N)},
           reduce_heads_kernel<T, N>, x.heads, x, y);
  });
}

}  // namespace sy::cuda
