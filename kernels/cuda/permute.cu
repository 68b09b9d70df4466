// Copies of rows: permute and unpermute.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/permute.h"

namespace sy::cuda {

namespace {

// Division of rows of `packs` packs of N elements among threads: `lanes` threads of a block take a
// row.
struct RowLanes {
  Index rows, packs;
  int lanes;

  // First element of a pack, in either operand. The compiler must see that it is a multiple of N,
  // for vector stores.
  template <int N>
  __device__ Index at(Index row, Index pack) const {
    return (row * packs + pack) * N;
  }
};

constexpr int permute_threads = 256;  // per block

RowLanes lanes_of(Index rows, Index packs) {
  int lanes = 1;
  while (lanes < packs && lanes < permute_threads) lanes *= 2;
  return {rows, packs, lanes};
}
Grid row_grid(const RowLanes& rows) {
  return {.x = blocks_of(rows.rows, permute_threads / rows.lanes), .threads = permute_threads};
}

// Calls visit(row, pack) for the packs of the grid's rows.
template <class Visit>
__device__ void for_packs(const RowLanes& rows, Visit visit) {
  const Index row = static_cast<Index>(blockIdx.x) * (permute_threads / rows.lanes) + threadIdx.x / rows.lanes;
  if (row >= rows.rows) return;
  for (Index pack = threadIdx.x % rows.lanes; pack < rows.packs; pack += rows.lanes) visit(row, pack);
}

// An element of y costs 2w bytes.
template <class T, int N>
__global__ void permute_rows(RowLanes rows, In<T> x, In<std::int32_t> index, Out<T> y) {
  for_packs(rows, [&](Index row, Index pack) {
    const Index from = index[row];
    if (from >= 0) store<N>(y, rows.at<N>(row, pack), load<N>(x, rows.at<N>(from, pack)));
  });
}

// An element of y costs w bytes, w more for `addend` or accumulation into y, and w bytes and 1 FLOP
// for each summed row.
template <class T, int N>
__global__ void unpermute_rows(RowLanes rows, In<T> x, Index k, In<std::int32_t> row_id_map, In<T> addend,
                               bool accumulate, Out<T> y) {
  for_packs(rows, [&](Index row, Index pack) {
    const Index to = rows.at<N>(row, pack);
    float sums[N] = {};
    if (addend || accumulate) {
      const auto before = accumulate ? load<N>(y, to) : load<N>(addend, to);
      for (int n = 0; n < N; ++n) sums[n] = to_float(before[n]);
    }
    for (Index j = 0; j < k; ++j) {
      const Index source = row_id_map[row * k + j];
      if (source < 0) continue;
      const auto summand = load<N>(x, rows.at<N>(source, pack));
      for (int n = 0; n < N; ++n) sums[n] += to_float(summand[n]);
    }
    Pack<T, N> sum;
    for (int n = 0; n < N; ++n) sum[n] = from_float<T>(sums[n]);
    store<N>(y, to, sum);
  });
}

}  // namespace

void execute(CudaDevice& device, const ops::Permute& op) {
  with_type_and_packs(op.y.dim(1), {op.y, op.x}, [&]<class T, int N>(T, PackSize<N>) {
    const RowLanes rows = lanes_of(op.y.dim(0), op.y.dim(1) / N);
    launch(device.context(), row_grid(rows), permute_rows<T, N>, rows, in<T>(op.x), in<std::int32_t>(op.index),
           out<T>(op.y));
  });
}

void execute(CudaDevice& device, const ops::Unpermute& op) {
  const bool accumulate = op.addend && op.addend.bytes() == op.y.bytes();
  const ConstView addend = accumulate ? ConstView() : op.addend;
  with_type_and_packs(op.y.dim(1), {op.y, op.x, addend ? addend : op.y}, [&]<class T, int N>(T, PackSize<N>) {
    const RowLanes rows = lanes_of(op.y.dim(0), op.y.dim(1) / N);
    launch(device.context(), row_grid(rows), unpermute_rows<T, N>, rows, in<T>(op.x), op.row_id_map.dim(1),
           in<std::int32_t>(op.row_id_map), in<T>(addend), accumulate, out<T>(op.y));
  });
}

}  // namespace sy::cuda
