// Inner loop of products in f32, which holds a tile of C in registers. Its operands are packed
// (pack.h).
//
// Vectors are those of the compiler (GCC and Clang vector extensions), of the target's width. Full
// unrolling keeps the tile in registers. The loop runs at 95-99% of the FMA peak on AVX-512 and
// AVX2.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <utility>

#include "kernels/bf16.h"
#include "kernels/tensor.h"

namespace sy::cpu {

// A tile holds tile_rows x tile_vectors vectors of sums in registers, besides tile_vectors of B and
// one of A.
#if defined(__AVX512F__)
constexpr int simd_width = 16;
constexpr int tile_rows = 14;
#elif defined(__AVX__)
constexpr int simd_width = 8;
constexpr int tile_rows = 6;
#elif defined(__aarch64__)
constexpr int simd_width = 4;
constexpr int tile_rows = 12;
#else
constexpr int simd_width = 4;
constexpr int tile_rows = 4;
#endif
constexpr int tile_vectors = 2;
constexpr int tile_cols = tile_vectors * simd_width;

typedef float Vector __attribute__((vector_size(simd_width * sizeof(float))));
// A vector in memory, at any address of a float or of a pair of bf16.
typedef float UnalignedVector __attribute__((vector_size(simd_width * sizeof(float)), aligned(2), may_alias));

inline Vector load(const float* p) {
  return *reinterpret_cast<const UnalignedVector*>(p);
}
// The same for bf16, which is the upper half of a float.
inline Vector load(const Bf16* p) {
  typedef std::uint16_t Halves __attribute__((vector_size(simd_width * 2)));
  typedef std::uint16_t UnalignedHalves __attribute__((vector_size(simd_width * 2), aligned(2), may_alias));
  typedef std::uint32_t Bits __attribute__((vector_size(simd_width * 4)));
  const Halves halves = *reinterpret_cast<const UnalignedHalves*>(p);
  return std::bit_cast<Vector>(__builtin_convertvector(halves, Bits) << 16);
}
inline void store(float* p, Vector v) {
  *reinterpret_cast<UnalignedVector*>(p) = v;
}

// c[i * ldc + j] (+)= sum over l < k, in order, of a[i * a_row + l * a_col] * b[l * b_row + j], for
// i < rows and j < cols <= vectors * simd_width.
//
// It reads all vectors * simd_width columns of b. Every element takes the same operations for any
// rows, vectors and cols. ahead: memory that is needed next. If `prefetch`, each step of l
// prefetches `step` more floats of it.
//
// A step of l is 2 * rows * vectors * simd_width FLOPs for 4 * (rows + vectors * simd_width) bytes,
// which come from the L1 cache. A full tile of AVX-512 computes 896 FLOPs with 184 bytes.
struct Ahead {
  const float* data;
  Index step;
};
template <int rows, int vectors, Index a_row, Index a_col, bool prefetch = false>
void tile(Index k, const float* a, const float* b, Index b_row, float* c, Index ldc, Index cols, bool accumulate,
          Ahead ahead = {}) {
  // C is prefetched, so that it is in a cache at the end. All rows are prefetched at once, or, if a
  // vector is a cache line, one row now and then. The latter made training steps 1 to 2 % faster
  // with AVX-512 and slower with AVX2.
  const auto prefetch_c = [&](Index i) {
#pragma GCC unroll 4
    for (int j = 0; j < vectors * simd_width; j += 16) __builtin_prefetch(c + i * ldc + j, 1);
  };
  constexpr bool spread = simd_width == 16;
  if constexpr (!spread) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) prefetch_c(i);
  }
  const Index every = std::max<Index>(1, k / rows);
  Index row_of_c = 0, next = 0;
  Vector sum[rows][vectors] = {};
  for (Index l = 0; l < k; ++l, a += a_col, b += b_row) {
    if (spread && l == next && row_of_c < rows) {
      prefetch_c(row_of_c++);
      next += every;
    }
    if constexpr (prefetch) {
      __builtin_prefetch(ahead.data, 0, 2);
      ahead.data += ahead.step;
    }
    Vector right[vectors];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) right[j] = load(b + j * simd_width);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) sum[i][j] += a[i * a_row] * right[j];
    }
  }
  if (cols == vectors * simd_width) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) {
        float* to = c + i * ldc + j * simd_width;
        store(to, accumulate ? load(to) + sum[i][j] : sum[i][j]);
      }
    }
    return;
  }
  float row[vectors * simd_width];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) store(row + j * simd_width, sum[i][j]);
    for (Index j = 0; j < cols; ++j) c[i * ldc + j] = accumulate ? c[i * ldc + j] + row[j] : row[j];
  }
}

// The tiles of 1 .. tile_rows rows and 1 .. tile_vectors vectors, chosen at run time.
template <Index a_row, Index a_col, bool prefetch = false>
class Tiles {
 public:
  using Function = void (*)(Index k, const float* a, const float* b, Index b_row, float* c, Index ldc, Index cols,
                            bool accumulate, Ahead ahead);

  static void run(Index rows, Index k, const float* a, const float* b, Index b_row, float* c, Index ldc, Index cols,
                  bool accumulate, Ahead ahead = {}) {
    const Index vectors = ceil_div(cols, simd_width);
    table[(rows - 1) * tile_vectors + vectors - 1](k, a, b, b_row, c, ldc, cols, accumulate, ahead);
  }

 private:
  template <int... each>
  static constexpr std::array<Function, sizeof...(each)> make(std::integer_sequence<int, each...>) {
    return {&tile<each / tile_vectors + 1, each % tile_vectors + 1, a_row, a_col, prefetch>...};
  }
  static constexpr auto table = make(std::make_integer_sequence<int, tile_rows * tile_vectors>{});
};

}  // namespace sy::cpu
