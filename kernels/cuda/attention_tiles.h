// Tiles of attention's kernels: elements of products, tiles in shared memory, products of tiles.
//
// Forward and backward follow FlashAttention-2 (Dao, 2023). A block holds a tile of rows (queries,
// or keys in one kernel) and iterates over tiles of the other side. No S x S matrix is ever stored.
// A warp owns 16 M rows of the tile. Its products are in registers, in the layout of mma.h for
// every type: lane 4 g + t holds four elements of each 16 x 8 block (m, n):
//   c[m][n][i] = C[16 m + 8 (i / 2) + g][8 n + 2 t + i % 2]
// Tensor cores multiply bf16; f32 uses plain fused multiply-adds.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/mma.h"

namespace sy::cuda::attention {

// Limit of a block's shared memory. An A100 has 163 KiB, H100 and B200 have more. The smallest
// cards of compute capability 8.0 or later have 99 KiB, which must suffice for narrow heads.
constexpr Index max_head_width = 256, max_narrow_head_width = 64;  // hd
constexpr Index attention_shared_bytes(Index hd) {
  return (hd > max_narrow_head_width ? 160 : 99) * 1024;
}

// ---- elements of products ----

// Calls f(m, n, i) for all elements of a warp's C: [16 M, 8 N] that this lane holds.
template <int M, int N, class F>
__device__ void each(F f) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(m, n, i);
}
// Calls f(m, half) for the rows of these elements. Row (m, half) has the elements i with i / 2 =
// half.
template <int M, class F>
__device__ void each_row(F f) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) f(m, half);
}
// Row and column of element (m, n, i).
__device__ inline int row_of(int m, int i) {
  return 16 * m + i / 2 * 8 + static_cast<int>(threadIdx.x) % warp_size / 4;
}
__device__ inline int column_of(int n, int i) {
  return 8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
}

// tanh. For bf16 its absolute error is 1e-7, and its relative error near 0 is larger than that of
// tanhf.
template <class T>
__device__ float cap_tanh(float x) {
  if constexpr (std::is_same_v<T, float>)
    return tanhf(x);
  else
    return 1 - __fdividef(2.0f, 1 + exp2_approx(2 * log2_e * x));
}

// ---- tiles in shared memory ----
// A tile is [rows, pitch]. `width` is the head dimension rounded up; zeros fill the added columns.
// Another 16 bytes per row avoid bank conflicts between the rows that lanes read at once.

template <class T>
constexpr int pitch(int width) {
  return width + pack_size<T>;
}

// Starts a copy of vectors [first, first + rows) to a tile, by the whole block. Rows without a
// vector become zero. All rows are visible after wait_async() and a barrier. Unaligned vectors
// share these kernels, because separate ones would double the compile time.
template <int rows, int width, int threads, class T, class P>
__device__ void load_tile(T* tile, const HeadRows<P>& from, int first, bool in_packs) {
  const int thread = static_cast<int>(threadIdx.x), count = min(from.count - first, rows);
  auto x = from.x + Index{first} * from.stride;
  if (in_packs) {
    constexpr int pack = pack_size<T>, packs = width / pack;  // of a row
    constexpr int at_once = threads / packs;                  // rows
    const int c = thread % packs * pack;
    x += thread / packs * from.stride + c;
    if (threads % packs != 0 && thread >= at_once * packs) return;
#pragma unroll
    for (int step = 0; step < blocks_of(rows, at_once); ++step) {
      const int row = thread / packs + step * at_once;
      if (rows % at_once == 0 || row < rows)
        load_async<pack>(tile + row * pitch<T>(width) + c, x, step * at_once * from.stride,
                         row < count && c < from.width);
    }
  } else {
#pragma unroll 1
    for (int i = thread; i < rows * width; i += threads) {
      const int row = i / width, c = i % width;
      tile[row * pitch<T>(width) + c] = row < count && c < from.width ? x[row * from.stride + c] : from_float<T>(0.0f);
    }
  }
}

// Rounds a warp's results and stores them as vectors [first, first + 16 M), up to the last vector.
// tile: [16 M, pitch] of the warp.
template <int M, int N, class T, class P>
__device__ void store_tile(const float (&c)[M][N][4], T* tile, const HeadRows<P>& to, int first, bool in_packs) {
  constexpr int pack = pack_size<T>, width = 8 * N;
  __syncwarp();  // earlier reads of the tile are complete
  each<M, N>(
      [&](int m, int n, int i) { tile[row_of(m, i) * pitch<T>(width) + column_of(n, i)] = from_float<T>(c[m][n][i]); });
  __syncwarp();
  for (int i = static_cast<int>(threadIdx.x) % warp_size; i < 16 * M * (width / pack); i += warp_size) {
    const int row = i / (width / pack), c = i % (width / pack) * pack;
    const T* const from = tile + row * pitch<T>(width) + c;
    const Index at = Index{first + row} * to.stride + c;
    if (first + row >= to.count || c >= to.width) continue;
    if (in_packs)
      store(to.x, at, load<pack>(from, 0));
    else
      for (int e = 0; e < pack && c + e < to.width; ++e) to.x[at + e] = from[e];
  }
}

// ---- products of tiles ----

// C += A B^T.  a: [16 M, width] rows of the warp, b: [8 N, width], both in tiles.
template <int width, int M, int N>
__device__ void multiply_transposed(float (&c)[M][N][4], const bf16* a, const bf16* b) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  a += lane % 16 * pitch<bf16>(width) + lane / 16 * 8;
  b += (lane / 16 * 8 + lane % 8) * pitch<bf16>(width) + lane / 8 % 2 * 8;
#pragma unroll 4
  for (int k = 0; k < width; k += 16) {
    std::uint32_t left[M][4], right[4];
#pragma unroll
    for (int m = 0; m < M; ++m) load_matrices(left[m], a + 16 * m * pitch<bf16>(width) + k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      load_matrices(right, b + 8 * n * pitch<bf16>(width) + k);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma(c[m][n], left[m], right[0], right[1]);
        mma(c[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}
template <int width, int M, int N>
__device__ void multiply_transposed(float (&c)[M][N][4], const float* a, const float* b) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  a += lane / 4 * pitch<float>(width);
  b += lane % 4 * 2 * pitch<float>(width);
#pragma unroll 1
  for (int k = 0; k < width; k += 4) {
    Pack<float, 4> left[M][2];
#pragma unroll
    for (int row = 0; row < 2 * M; ++row) left[row / 2][row % 2] = load<4>(a, 8 * row * pitch<float>(width) + k);
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Pack<float, 4> right = load<4>(b, (8 * n + i) * pitch<float>(width) + k);
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            c[m][n][i] += left[m][0][e] * right[e];
            c[m][n][2 + i] += left[m][1][e] * right[e];
          }
      }
  }
}

// C: [16 M, 8 N] of a warp, rounded to T, as operand A of another product.
template <class T, int M, int N>
struct Left;

template <int M, int N>
struct Left<bf16, M, N> {
  static constexpr int shared_size = 0;
  std::uint32_t fragments[M][N / 2][4];

  __device__ Left(const float (&c)[M][N][4], bf16*) {
    // In these layouts, two blocks of C form one block of A.
    each<M, N>([&](int m, int n, int i) {
      if (i % 2 == 0) fragments[m][n / 2][n % 2 * 2 + i / 2] = bf16_pair(c[m][n][i], c[m][n][i + 1]);
    });
  }
};
// f32: in shared memory, in shared_size elements of the warp.
template <int M, int N>
struct Left<float, M, N> {
  static constexpr int shared_size = 16 * M * pitch<float>(8 * N);
  const float* rows;

  __device__ Left(const float (&c)[M][N][4], float* shared) : rows(shared) {
    __syncwarp();  // earlier reads are complete
    each<M, N>([&](int m, int n, int i) { shared[row_of(m, i) * pitch<float>(8 * N) + column_of(n, i)] = c[m][n][i]; });
    __syncwarp();
  }
};

// C += A B.  a: [16 M, 8 N] of the warp, b: [8 N, 8 W] in a tile.
template <int M, int N, int W>
__device__ void multiply(float (&c)[M][W][4], const Left<bf16, M, N>& a, const bf16* b) {
  constexpr int width = 8 * W;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  b += lane % 16 * pitch<bf16>(width) + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < N / 2; ++k)
#pragma unroll
    for (int n = 0; n < W; n += 2) {
      std::uint32_t right[4];
      load_matrices_transposed(right, b + 16 * k * pitch<bf16>(width) + 8 * n);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        mma(c[m][n], a.fragments[m][k], right[0], right[1]);
        mma(c[m][n + 1], a.fragments[m][k], right[2], right[3]);
      }
    }
}
template <int M, int N, int W>
__device__ void multiply(float (&c)[M][W][4], const Left<float, M, N>& a, const float* b) {
  constexpr int width = 8 * W;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const float* const rows = a.rows + lane / 4 * pitch<float>(8 * N);
  b += lane % 4 * 2;
#pragma unroll 1
  for (int k = 0; k < 8 * N; k += 4) {
    Pack<float, 4> left[M][2];
#pragma unroll
    for (int row = 0; row < 2 * M; ++row) left[row / 2][row % 2] = load<4>(rows, 8 * row * pitch<float>(8 * N) + k);
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int n = 0; n < W; ++n) {
        const Pack<float, 2> right = load<2>(b, (k + e) * pitch<float>(width) + 8 * n);
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i) c[m][n][i] += left[m][i / 2][e] * right[i % 2];
      }
  }
}

// ---- kernels by head width ----
//
// The launch bounds of these kernels name 1 block of a multiprocessor. Without it, nvcc for sm_100a
// limits the registers so that three blocks fit, and spills a thousand bytes of a thread.

// Tiles of a kernel. A block of `warps` warps holds 16 M * warps rows, in `row_tiles` tiles. It
// iterates over `cols` positions of the other side at a time, in `col_tiles` tiles.
template <class T, int width, int M_, int warps_, int cols_, int row_tiles, int col_tiles>
struct Tiles {
  static constexpr int M = M_, cols = cols_;
  static constexpr int threads = warps_ * warp_size, rows = 16 * M * warps_;
  using Left = attention::Left<T, M, cols / 8>;
  static constexpr int shared_elements =
      (row_tiles * rows + col_tiles * cols) * pitch<T>(width) + warps_ * Left::shared_size;
  static_assert(shared_elements * sizeof(T) <= attention_shared_bytes(width));
};

template <int width>
using Width = std::integral_constant<int, width>;

// Calls f(Width<width>{}) for the smallest compiled width that holds heads of hd elements.
template <class F>
void with_width(Index hd, F f) {
  if (hd <= 32) return f(Width<32>{});
  if (hd <= 64) return f(Width<64>{});
  if (hd <= 96) return f(Width<96>{});
  if (hd <= 128) return f(Width<128>{});
  if (hd <= 192) return f(Width<192>{});
  if (hd <= 256) return f(Width<256>{});
  SY_ASSERT(false, "heads of {}", hd);
}

}  // namespace sy::cuda::attention
