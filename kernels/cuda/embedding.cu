// Embedding: table look-up and its gradient.
#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"

namespace sy::cuda {

namespace {

// A block copies the row of its token, or writes zeros. An element of y costs 2w bytes.
template <class T, int N>
__global__ void copy_rows(Index vocab_begin, Index vocab, Index width, In<std::int32_t> ids, In<T> table, Out<T> y) {
  const Index token = blockIdx.x, id = ids[token] - vocab_begin;
  const bool is_local = id >= 0 && id < vocab;
  const auto zeros = pack_of<T, N>([](int) { return 0.0f; });
  for_row<N>(width,
             [&](Index i) { store<N>(y, token * width + i, is_local ? load<N>(table, id * width + i) : zeros); });
}

// ---- the gradient ----
// The tokens are sorted by (id, token): tiles by one block each, then by merging. The tokens of one
// id are divided into chunks, and a warp sums the rows of a chunk. The sum of an id's
// first chunk is added to the table at once. The other sums are stored and added later. The chunks
// of an id depend on its own tokens alone.

// id << 32 | token, so that all keys differ. The id is `vocab` if this rank does not hold the row.
using Key = std::int64_t;

__device__ Index id_of(Key key) {
  return key >> 32;
}
__device__ Index token_of(Key key) {
  return key & 0xffffffff;
}

// First index in [low, high) of the sorted keys whose key is not less than `key`.
template <class Keys>
__device__ Index lower_bound(const Keys& keys, Index low, Index high, Key key) {
  return partition_point(low, high, [&](Index i) { return keys[i] < key; });
}

// Destination of key i when sorted sequences of `run` keys, a power of two, are merged in pairs. It
// is the start of the pair plus the number of smaller keys in both sequences.
template <class Keys>
__device__ Index merged_index(const Keys& keys, Index i, Index length, Index n) {
  const Index begin = i & ~(2 * length - 1);
  const Index middle = begin + length < n ? begin + length : n, end = middle + length < n ? middle + length : n;
  const bool left = i < middle;
  return i - middle + lower_bound(keys, left ? middle : begin, left ? end : middle, keys[i]);
}

constexpr int tile_size = 1024;

// A block sorts the keys of tile_size of the ids: [n], one per thread. A token costs 12 bytes.
__global__ void __launch_bounds__(tile_size)
    sort_tiles(Index n, Index vocab_begin, Index vocab, In<std::int32_t> ids, Out<Key> keys) {
  __shared__ Key tile[2][tile_size];
  const Index first = Index{blockIdx.x} * tile_size, i = threadIdx.x;
  const Index count = n - first < tile_size ? n - first : tile_size;
  if (i < count) {
    const Index id = ids[first + i] - vocab_begin;
    tile[0][i] = (id >= 0 && id < vocab ? id : vocab) << 32 | (first + i);
  }
  __syncthreads();
  int from = 0;
  for (Index length = 1; length < count; length *= 2) {
    if (i < count) tile[1 - from][merged_index(tile[from], i, length, count)] = tile[from][i];
    __syncthreads();
    from = 1 - from;
  }
  if (i < count) keys[first + i] = tile[from][i];
}

// A token costs 16 bytes.
__global__ void merge_pairs(Index n, Index length, In<Key> keys, Out<Key> merged) {
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) merged[merged_index(keys, i, length, n)] = keys[i];
}

constexpr int chunk_rows = 128;  // largest number of rows that one warp sums

// Each index i of the sorted keys has a warp, which sums the chunk that begins there, if there is
// one. The first chunk of an id is added to its row of dtable: [vocab, width]. The others are
// written to partial[i / chunk_rows]. Two of these never begin within `chunk_rows` indices, because
// the first chunk of an id with several chunks is full. An element of dy costs w bytes and 1 FLOP,
// and an element of a chunk 8 bytes.
template <class T, int N>
__global__ void sum_chunks(Index n, Index vocab, Index width, In<Key> keys, In<T> dy, Out<float> dtable,
                           Out<float> partial) {
  const Index i = (Index{blockIdx.x} * blockDim.x + threadIdx.x) / warp_size;
  if (i >= n) return;
  const Index id = id_of(keys[i]);
  if (id == vocab) return;
  const bool first = i == 0 || id_of(keys[i - 1]) != id;
  if (!first) {
    if (i < chunk_rows || id_of(keys[i - chunk_rows]) != id) return;  // within the first chunk
    if ((i - lower_bound(keys, 0, i, id << 32)) % chunk_rows != 0) return;
  }
  const Index end = lower_bound(keys, i + 1, i + chunk_rows < n ? i + chunk_rows : n, (id + 1) << 32);
  for (Index column = threadIdx.x % warp_size * N; column < width; column += warp_size * N) {
    Pack<float, N> sum;
    for (int e = 0; e < N; ++e) sum[e] = 0;
    for (Index r = i; r < end; ++r) {
      const auto row = load<N>(dy, token_of(keys[r]) * width + column);
      for (int e = 0; e < N; ++e) sum[e] += to_float(row[e]);
    }
    if (first) {
      const auto before = load<N>(dtable, id * width + column);
      for (int e = 0; e < N; ++e) sum[e] += before[e];
      store<N>(dtable, id * width + column, sum);
    } else {
      store<N>(partial, i / chunk_rows * width + column, sum);
    }
  }
}

// A block searches `chunk_rows` indices for the first key of an id with several chunks; there is at
// most one. It adds the sums of the id's further chunks to its row, in order. An element of such a
// chunk costs 4 bytes and 1 FLOP.
template <int N>
__global__ void add_chunk_sums(Index n, Index vocab, Index width, In<Key> keys, In<float> partial, Out<float> dtable) {
  __shared__ Index found;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  const Index i = Index{blockIdx.x} * chunk_rows + threadIdx.x;
  if (i + chunk_rows < n && id_of(keys[i + chunk_rows]) == id_of(keys[i]) &&
      (i == 0 || id_of(keys[i - 1]) != id_of(keys[i])))
    found = i;
  __syncthreads();
  const Index begin = found, column = (Index{blockIdx.y} * chunk_rows + threadIdx.x) * N;
  if (begin < 0 || column >= width) return;
  const Index id = id_of(keys[begin]);
  if (id == vocab) return;
  const Index end = lower_bound(keys, begin, n, (id + 1) << 32);
  auto sum = load<N>(dtable, id * width + column);
  for (Index at = begin + chunk_rows; at < end; at += chunk_rows) {
    const auto more = load<N>(partial, at / chunk_rows * width + column);
    for (int e = 0; e < N; ++e) sum[e] += more[e];
  }
  store<N>(dtable, id * width + column, sum);
}

}  // namespace

void execute(CudaDevice& device, const ops::EmbeddingForward& op) {
  const Index tokens = op.y.dim(0), width = op.y.dim(1), vocab = op.table.dim(0);
  if (vocab == 0) return execute(device, ops::Fill{.x = op.y, .value = 0});
  with_type_and_packs(width, {op.table, op.y}, [&]<class T, int N>(T, PackSize<N>) {
    launch(device.context(), {.x = tokens, .threads = row_threads(blocks_of(width, N))}, copy_rows<T, N>,
           op.vocab_begin, vocab, width, op.ids, op.table, op.y);
  });
}

// Processes as many tokens at once as fit the workspace. The order of summation stays that of the
// tokens.
void execute(CudaDevice& device, const ops::EmbeddingBackward& op) {
  Context& context = device.context();
  const ConstView ids = op.ids, dy = op.dy;
  const View dtable = op.dtable;
  const Index tokens = ids.dim(0), width = dy.dim(1), vocab = dtable.dim(0);
  const Index max_chunks =
      (context.workspace_bytes - 1024) / (chunk_rows * 2 * size_of(DType::i64) + width * size_of(DType::f32));
  SY_ASSERT(max_chunks > 0, "embedding_backward: rows of {}", width);
  for (Index at = 0; at < tokens; at += max_chunks * chunk_rows) {
    const Index n = std::min(tokens - at, max_chunks * chunk_rows), num_chunks = blocks_of(n, chunk_rows);
    Workspace workspace(context);
    View keys = workspace.take({n}, DType::i64), merged = workspace.take({n}, DType::i64);
    const View partial = workspace.take({num_chunks, width}, DType::f32);
    launch(context, {.x = blocks_of(n, tile_size), .threads = tile_size}, sort_tiles, n, op.vocab_begin, vocab,
           ids.rows(at, n), keys);
    for (Index length = tile_size; length < n; length *= 2) {
      launch(context, {.x = blocks_of(n, Grid{}.threads)}, merge_pairs, n, length, keys, merged);
      std::swap(keys, merged);
    }
    const ConstView rows = dy.rows(at, n);
    with_packs<4>(width, {rows, dtable}, [&]<int N>(PackSize<N>) {
      with_type(dy.dtype(), [&]<class T>(T) {
        launch(context, {.x = blocks_of(n * warp_size, Grid{}.threads)}, sum_chunks<T, N>, n, vocab, width, keys, rows,
               dtable, partial);
      });
      launch(context, {.x = num_chunks, .y = blocks_of(width, chunk_rows * N), .threads = chunk_rows},
             add_chunk_sums<N>, n, vocab, width, keys, partial, dtable);
    });
  }
}

}  // namespace sy::cuda
