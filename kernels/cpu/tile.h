// The inner loop of every product: a tile of C held in registers, and the packing that feeds it.
//
// Vectors are the compiler's own (GCC and Clang vector extensions), of the width the target offers; full unrolling keeps
// the tile in registers, and the loop runs at 95-99% of the FMA peak on AVX-512 and AVX2.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "kernels/tensor.h"

namespace sy::cpu {

// A tile has tile_rows x tile_vectors sums in registers, besides tile_vectors of B and one of A.
#if defined(__AVX512F__)
constexpr int lanes = 16;
constexpr int tile_rows = 14;
#elif defined(__AVX__)
constexpr int lanes = 8;
constexpr int tile_rows = 6;
#elif defined(__aarch64__)
constexpr int lanes = 4;
constexpr int tile_rows = 12;
#else
constexpr int lanes = 4;
constexpr int tile_rows = 4;
#endif
constexpr int tile_vectors = 2;
constexpr int tile_cols = tile_vectors * lanes;

typedef float Vector __attribute__((vector_size(lanes * sizeof(float))));
// As it lies in memory: at any address of a float.
typedef float UnalignedVector __attribute__((vector_size(lanes * sizeof(float)), aligned(4), may_alias));

inline Vector load(const float* p) { return *reinterpret_cast<const UnalignedVector*>(p); }
inline void store(float* p, Vector v) { *reinterpret_cast<UnalignedVector*>(p) = v; }

// c[i * ldc + j] (+)= sum over l < k, in order, of a[i * a_row + l * a_col] * b[l * b_row + j], for i < rows and
// j < cols <= vectors * lanes. Reads all vectors * lanes columns of b. Every element takes the same operations whatever
// rows, vectors and cols are.
template <int rows, int vectors, Index a_row, Index a_col>
void tile(Index k, const float* a, const float* b, Index b_row, float* c, Index ldc, Index cols, bool accumulate) {
  // C is asked for now, to be there at the end.
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < vectors * lanes; j += 16) __builtin_prefetch(c + i * ldc + j, 1);
  }
  Vector sum[rows][vectors] = {};
  for (Index l = 0; l < k; ++l, a += a_col, b += b_row) {
    Vector right[vectors];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) right[j] = load(b + j * lanes);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) sum[i][j] += a[i * a_row] * right[j];
    }
  }
  if (cols == vectors * lanes) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) {
        float* to = c + i * ldc + j * lanes;
        store(to, accumulate ? load(to) + sum[i][j] : sum[i][j]);
      }
    }
    return;
  }
  float row[vectors * lanes];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) store(row + j * lanes, sum[i][j]);
    for (Index j = 0; j < cols; ++j) c[i * ldc + j] = accumulate ? c[i * ldc + j] + row[j] : row[j];
  }
}

// Tiles of 1 .. tile_rows rows, and of 1 .. tile_vectors vectors.
template <Index a_row, Index a_col>
class Tiles {
 public:
  using Function = void (*)(Index k, const float* a, const float* b, Index b_row, float* c, Index ldc, Index cols,
                            bool accumulate);

  static void run(Index rows, Index k, const float* a, const float* b, Index b_row, float* c, Index ldc, Index cols,
                  bool accumulate) {
    const Index vectors = (cols + lanes - 1) / lanes;
    table[(rows - 1) * tile_vectors + vectors - 1](k, a, b, b_row, c, ldc, cols, accumulate);
  }

 private:
  template <int... each>
  static constexpr std::array<Function, sizeof...(each)> make(std::integer_sequence<int, each...>) {
    return {&tile<each / tile_vectors + 1, each % tile_vectors + 1, a_row, a_col>...};
  }
  static constexpr auto table = make(std::make_integer_sequence<int, tile_rows * tile_vectors>{});
};

namespace detail {

// Exchanges, between rows i and i + distance, the blocks of `distance` lanes off the diagonal: [A B; C D] -> [A C; B D].
template <int distance, int... lane>
void exchange(Vector& x, Vector& y, std::integer_sequence<int, lane...>) {
  const Vector first = __builtin_shufflevector(x, y, (lane & distance ? lanes + lane - distance : lane)...);
  y = __builtin_shufflevector(x, y, (lane & distance ? lanes + lane : lane + distance)...);
  x = first;
}

template <int distance>
void transpose_step(Vector (&v)[lanes]) {
  if constexpr (distance < lanes) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i)
      if (!(i & distance)) exchange<distance>(v[i], v[i + distance], std::make_integer_sequence<int, lanes>{});
    transpose_step<distance * 2>(v);
  }
}

}  // namespace detail

inline void transpose(Vector (&v)[lanes]) { detail::transpose_step<1>(v); }

// Cuts `count` vectors of k floats into panels of `width` vectors, interleaved: float l of vector i, which lies at
// data[i * stride + l * k_stride], goes to out[(i / width) * width * k + l * width + i % width]. The last panel is
// completed by zeros. Writes up to `lanes` floats beyond the last panel.
template <int width>
void pack(const float* data, Index stride, Index k_stride, Index count, Index k, float* out) {
  static_assert(width < lanes || width % lanes == 0);
  const Index whole = count / width * width;
  if (stride == 1) {  // copies runs of `width` floats, in the order in which they lie in memory
    for (Index l = 0; l < k; ++l) {
      const float* from = data + l * k_stride;
      float* to = out + l * width;
      for (Index i = 0; i < whole; i += width) std::memcpy(to + i * k, from + i, width * sizeof(float));
      if (whole < count) {
        for (Index i = 0; i < width; ++i) to[whole * k + i] = whole + i < count ? from[whole + i] : 0.0f;
      }
    }
    return;
  }
  for (Index panel = 0; panel < count; panel += width, data += width * stride, out += width * k) {
    const Index used = std::min<Index>(width, count - panel);
    Index l = 0;
    if (k_stride == 1) {  // transposes squares of lanes x lanes
      for (; l + lanes <= k; l += lanes) {
        for (int first = 0; first < width; first += lanes) {
          Vector v[lanes];
#pragma GCC unroll 16
          for (int i = 0; i < lanes; ++i)
            v[i] = first + i < width && first + i < used ? load(data + (first + i) * stride + l) : Vector{};
          // The processor does not guess this order of reading: the next panel is asked for here.
#pragma GCC unroll 16
          for (int i = 0; i < lanes; ++i)
            if (first + i < width) __builtin_prefetch(data + (width + first + i) * stride + l, 0, 2);
          transpose(v);
          // A width below `lanes` writes beyond its row: the next row overwrites that.
#pragma GCC unroll 16
          for (int i = 0; i < lanes; ++i) store(out + (l + i) * width + first, v[i]);
        }
      }
    }
    for (; l < k; ++l)
      for (Index i = 0; i < width; ++i) out[l * width + i] = i < used ? data[i * stride + l * k_stride] : 0.0f;
  }
}

// Memory of one thread for packed operands: grows and stays.
class Buffer {
 public:
  float* reserve(Index floats) {
    if (floats > size_) {
      memory_.reset(static_cast<float*>(std::aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64)));
      if (!memory_) throw std::bad_alloc();
      size_ = floats;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> memory_;
  Index size_ = 0;
};

}  // namespace sy::cpu
