// Embedding: table look-up and its gradient.
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/rows.h"

namespace sy::cuda {

namespace {

// A block copies the row of its token, or writes zeros. An element of y costs 2w bytes.
template <class T, int N>
__global__ void copy_rows(Index vocab_begin, Index vocab, Index width, In<std::int32_t> ids, In<T> table, Out<T> y) {
  const Index token = blockIdx.x, id = ids[token] - vocab_begin;
  const bool held = id >= 0 && id < vocab;
  Pack<T, N> zeros;
  for (int e = 0; e < N; ++e) zeros[e] = from_float<T>(0);
  for_row<N>(width, [&](Index i) { store<N>(y, token * width + i, held ? load<N>(table, id * width + i) : zeros); });
}

// ---- the gradient ----
// The tokens are sorted by (id, token): tiles by one block each, then by merging. The tokens of one
// id are divided into chunks (pieces), and a warp sums the rows of a chunk. The sum of an id's
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
  while (low < high) {
    const Index middle = (low + high) / 2;
    if (keys[middle] < key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Destination of key i when sorted sequences of `run` keys, a power of two, are merged in pairs. It
// is the start of the pair plus the number of smaller keys in both sequences.
template <class Keys>
__device__ Index merged_place(const Keys& keys, Index i, Index run, Index n) {
  const Index begin = i & ~(2 * run - 1);
  const Index middle = begin + run < n ? begin + run : n, end = middle + run < n ? middle + run : n;
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
  for (Index run = 1; run < count; run *= 2) {
    if (i < count) tile[1 - from][merged_place(tile[from], i, run, count)] = tile[from][i];
    __syncthreads();
    from = 1 - from;
  }
  if (i < count) keys[first + i] = tile[from][i];
}

// A token costs 16 bytes.
__global__ void merge_runs(Index n, Index run, In<Key> keys, Out<Key> merged) {
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) merged[merged_place(keys, i, run, n)] = keys[i];
}

constexpr int piece = 128;  // largest number of rows that one warp sums

// Each index i of the sorted keys has a warp, which sums the chunk that begins there, if there is
// one. The first chunk of an id is added to its row of dtable: [vocab, width]. The others are
// written to partial[i / piece]. Two of these never begin within `piece` indices, because the first
// chunk of an id with several chunks is full. An element of dy costs w bytes and 1 FLOP, and an
// element of a chunk 8 bytes.
template <class T, int N>
__global__ void sum_pieces(Index n, Index vocab, Index width, In<Key> keys, In<T> dy, Out<float> dtable,
                           Out<float> partial) {
  const Index i = (Index{blockIdx.x} * blockDim.x + threadIdx.x) / warp_size;
  if (i >= n) return;
  const Index id = id_of(keys[i]);
  if (id == vocab) return;
  const bool first = i == 0 || id_of(keys[i - 1]) != id;
  if (!first) {
    if (i < piece || id_of(keys[i - piece]) != id) return;  // within the first chunk
    if ((i - lower_bound(keys, 0, i, id << 32)) % piece != 0) return;
  }
  const Index end = lower_bound(keys, i + 1, i + piece < n ? i + piece : n, (id + 1) << 32);
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
      store<N>(partial, i / piece * width + column, sum);
    }
  }
}

// A block searches `piece` indices for the first key of an id with several chunks; there is at most
// one. It adds the sums of the id's further chunks to its row, in order. An element of such a chunk
// costs 4 bytes and 1 FLOP.
template <int N>
__global__ void add_pieces(Index n, Index vocab, Index width, In<Key> keys, In<float> partial, Out<float> dtable) {
  __shared__ Index found;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  const Index i = Index{blockIdx.x} * piece + threadIdx.x;
  if (i + piece < n && id_of(keys[i + piece]) == id_of(keys[i]) && (i == 0 || id_of(keys[i - 1]) != id_of(keys[i])))
    found = i;
  __syncthreads();
  const Index begin = found, column = (Index{blockIdx.y} * piece + threadIdx.x) * N;
  if (begin < 0 || column >= width) return;
  const Index id = id_of(keys[begin]);
  if (id == vocab) return;
  const Index end = lower_bound(keys, begin, n, (id + 1) << 32);
  auto sum = load<N>(dtable, id * width + column);
  for (Index at = begin + piece; at < end; at += piece) {
    const auto more = load<N>(partial, at / piece * width + column);
    for (int e = 0; e < N; ++e) sum[e] += more[e];
  }
  store<N>(dtable, id * width + column, sum);
}

}  // namespace

void CudaBackend::do_embedding_forward(ConstView ids, ConstView table, Index vocab_begin, View y) {
  const Index tokens = y.dim(0), width = y.dim(1);
  if (table.dim(0) == 0) return fill(y, 0);
  with_type_and_packs(width, {table, y}, [&](auto zero, auto packs) {
    using T = decltype(zero);
    constexpr int N = packs;
    launch(context_, {.x = tokens, .threads = row_threads(blocks_of(width, N))}, copy_rows<T, N>, vocab_begin,
           table.dim(0), width, in<std::int32_t>(ids), in<T>(table), out<T>(y));
  });
}

// Processes as many tokens at once as fit the workspace. The order of summation stays that of the
// tokens.
void CudaBackend::do_embedding_backward(ConstView ids, ConstView dy, Index vocab_begin, View dtable) {
  const Index tokens = ids.dim(0), width = dy.dim(1), vocab = dtable.dim(0);
  const Index room =
      (context_.workspace_bytes - 1024) / (piece * 2 * size_of(DType::i64) + width * size_of(DType::f32));
  SY_ASSERT(room > 0, "embedding_backward: rows of {}", width);
  for (Index at = 0; at < tokens; at += room * piece) {
    const Index n = std::min(tokens - at, room * piece), pieces = blocks_of(n, piece);
    Workspace workspace(context_);
    View keys = workspace.take({n}, DType::i64), merged = workspace.take({n}, DType::i64);
    const View partial = workspace.take({pieces, width}, DType::f32);
    launch(context_, {.x = blocks_of(n, tile_size), .threads = tile_size}, sort_tiles, n, vocab_begin, vocab,
           in<std::int32_t>(ids.rows(at, n)), out<Key>(keys));
    for (Index run = tile_size; run < n; run *= 2) {
      launch(context_, {.x = blocks_of(n, Grid{}.threads)}, merge_runs, n, run, in<Key>(keys), out<Key>(merged));
      std::swap(keys, merged);
    }
    const ConstView rows = dy.rows(at, n);
    with_packs<4>(width, {rows, dtable}, [&](auto packs) {
      constexpr int N = packs;
      with_type(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        launch(context_, {.x = blocks_of(n * warp_size, Grid{}.threads)}, sum_pieces<T, N>, n, vocab, width,
               in<Key>(keys), in<T>(rows), out<float>(dtable), out<float>(partial));
      });
      launch(context_, {.x = pieces, .y = blocks_of(width, piece * N), .threads = piece}, add_pieces<N>, n, vocab,
             width, in<Key>(keys), in<float>(partial), out<float>(dtable));
    });
  }
}

}  // namespace sy::cuda
