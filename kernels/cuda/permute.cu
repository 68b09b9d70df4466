// Copies of rows: permute and unpermute, and rows of messages.
#include <numeric>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/dispatch.h"
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

// An element of y costs 2w bytes. A row of x has `x_packs` packs, and is copied from `first` on.
template <class T, int N>
__global__ void permute_rows(RowLanes rows, Index x_packs, Index first, In<T> x, In<std::int32_t> index, Out<T> y) {
  for_packs(rows, [&](Index row, Index pack) {
    const Index from = index[row];
    if (from >= 0) store<N>(y, rows.at<N>(row, pack), load<N>(x, (from * x_packs + first + pack) * N));
  });
}

// TokenRow in elements of y.
struct Message {
  Index k, width, first_value, columns;
};

// Writes rows of messages; `lanes` threads share a row of `packs` packs of values. `message` is the
// format of a row, and `ints` is y as integers. An element of y costs 2w bytes.
template <class T, int N>
__global__ void pack_tokens(RowLanes rows, Message message, In<std::int32_t> physical_experts, In<float> weights,
                            In<T> x, In<std::int32_t> index, Out<T> y, Out<std::int32_t> ints) {
  const Index row = static_cast<Index>(blockIdx.x) * (permute_threads / rows.lanes) + threadIdx.x / rows.lanes;
  if (row >= rows.rows) return;
  const Index token = index[row];
  if (token < 0) return;
  const Index lane = threadIdx.x % rows.lanes, k = message.k, first = message.first_value, columns = message.columns,
              per_int = Index{4} / sizeof(T);
  for (Index i = lane; i < first / per_int; i += rows.lanes)
    ints[row * (columns / per_int) + i] = i < k       ? physical_experts[token * k + i]
                                          : i < 2 * k ? __float_as_int(weights[token * k + i - k])
                                                      : 0;
  for (Index pack = lane; pack < rows.packs; pack += rows.lanes) {
    Pack<T, N> values = {};
    if (pack * N < message.width) values = load<N>(x, (token * (message.width / N) + pack) * N);
    store<N>(y, ((row * columns + first) / N + pack) * N, values);
  }
}

// An element of the results costs 8 bytes. `row_ints` is the number of integers of a row.
struct UnpackMetadata {
  Index k, row_ints;
  In<std::int32_t> ints;
  Out<std::int32_t> physical_experts;
  Out<float> weights;
  template <int N>
  __device__ void at(Index i) const {
    for (Index e = i; e < i + N; ++e) {
      const Index from = e / k * row_ints + e % k;
      physical_experts[e] = ints[from];
      if (weights) weights[e] = __int_as_float(ints[from + k]);
    }
  }
};

// A message as integers.
template <class AnyView>
AnyView as_i32(AnyView x) {
  return {x.bytes(), {x.size_bytes() / Index{4}}, DType::i32};
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
  const Index common = std::gcd(std::gcd(op.y.dim(1), op.x.dim(1)), op.first_column);
  with_type_and_packs(common, {op.y, op.x}, [&]<class T, int N>(T, PackSize<N>) {
    const RowLanes rows = lanes_of(op.y.dim(0), op.y.dim(1) / N);
    launch(device.context(), row_grid(rows), permute_rows<T, N>, rows, op.x.dim(1) / N, op.first_column / N, op.x,
           op.index, op.y);
  });
}

void execute(CudaDevice& device, const ops::PackTokens& op) {
  const TokenRow row{op.physical_experts.dim(1), op.x.dim(1), op.x.dtype()};
  const Message message{row.k, row.width, row.first_value(), row.columns()};
  with_type_and_packs(message.width, {op.y, op.x}, [&]<class T, int N>(T, PackSize<N>) {
    const RowLanes rows = lanes_of(op.y.dim(0), (message.columns - message.first_value) / N);
    launch(device.context(), row_grid(rows), pack_tokens<T, N>, rows, message, op.physical_experts, op.weights, op.x,
           op.index, op.y, as_i32(op.y));
  });
}

void execute(CudaDevice& device, const ops::UnpackTokens& op) {
  const Index row_ints = op.x.dim(1) * size_of(op.x.dtype()) / 4;
  for_elements(device.context(), op.physical_experts.elements(), {},
               UnpackMetadata{op.physical_experts.dim(1), row_ints, in<std::int32_t>(as_i32(op.x)),
                              out<std::int32_t>(op.physical_experts), out<float>(op.weights)});
}

void execute(CudaDevice& device, const ops::Unpermute& op) {
  const bool accumulate = op.addend && op.addend.bytes() == op.y.bytes();
  const ConstView addend = accumulate ? ConstView() : op.addend;
  with_type_and_packs(op.y.dim(1), {op.y, op.x, addend ? addend : op.y}, [&]<class T, int N>(T, PackSize<N>) {
    const RowLanes rows = lanes_of(op.y.dim(0), op.y.dim(1) / N);
    launch(device.context(), row_grid(rows), unpermute_rows<T, N>, rows, op.x, op.row_id_map.dim(1), op.row_id_map,
           addend, accumulate, op.y);
  });
}

}  // namespace sy::cuda
