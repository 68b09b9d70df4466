// Packing of the operands of tiles (tile.h) into panels of interleaved vectors.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "kernels/bf16.h"
#include "kernels/cpu/tile.h"
#include "kernels/tensor.h"

namespace sy::cpu {

namespace detail {

// Interleaves two vectors within each 128-bit block of four lanes. It takes the low or the high
// half of each block, lane by lane (step 1) or pair by pair (step 2). For the low halves: x0 y0 x1
// y1 or x0 x1 y0 y1.
template <int step, bool high, int... lane>
[[gnu::always_inline]] inline Vector unpack(Vector x, Vector y, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(
      x, y,
      ((lane & ~3) + 2 * high +
       (step == 1 ? (lane & 3) / 2 + (lane & 1) * simd_width : (lane & 1) + (lane & 2) / 2 * simd_width))...);
}
// The even or odd blocks of x, then those of y.
template <bool odd, int... lane>
[[gnu::always_inline]] inline Vector alternate(Vector x, Vector y, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(x, y, ((lane / 4 * 2 + odd) * 4 + lane % 4)...);
}

constexpr auto all_lanes = std::make_integer_sequence<int, simd_width>{};

}  // namespace detail

// v[i][j] becomes v[j][i], first within blocks of 4 x 4, then among them. Each step is one
// instruction per vector.
[[gnu::always_inline]] inline void transpose(Vector (&v)[simd_width]) {
  using namespace detail;
  Vector t[simd_width];
#pragma GCC unroll 16
  for (int i = 0; i < simd_width; i += 4) {
    const Vector low01 = unpack<1, false>(v[i], v[i + 1], all_lanes);
    const Vector high01 = unpack<1, true>(v[i], v[i + 1], all_lanes);
    const Vector low23 = unpack<1, false>(v[i + 2], v[i + 3], all_lanes);
    const Vector high23 = unpack<1, true>(v[i + 2], v[i + 3], all_lanes);
    t[i] = unpack<2, false>(low01, low23, all_lanes);
    t[i + 1] = unpack<2, true>(low01, low23, all_lanes);
    t[i + 2] = unpack<2, false>(high01, high23, all_lanes);
    t[i + 3] = unpack<2, true>(high01, high23, all_lanes);
  }
  // Now block b of t[4 g + c] is block (g, b) of the matrix, its column c.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    if constexpr (simd_width == 4) {
      v[c] = t[c];
    } else if constexpr (simd_width == 8) {
      v[c] = alternate<false>(t[c], t[4 + c], all_lanes);
      v[4 + c] = alternate<true>(t[c], t[4 + c], all_lanes);
    } else {
      const Vector even01 = alternate<false>(t[c], t[4 + c], all_lanes);
      const Vector odd01 = alternate<true>(t[c], t[4 + c], all_lanes);
      const Vector even23 = alternate<false>(t[8 + c], t[12 + c], all_lanes);
      const Vector odd23 = alternate<true>(t[8 + c], t[12 + c], all_lanes);
      v[c] = alternate<false>(even01, even23, all_lanes);
      v[4 + c] = alternate<false>(odd01, odd23, all_lanes);
      v[8 + c] = alternate<true>(even01, even23, all_lanes);
      v[12 + c] = alternate<true>(odd01, odd23, all_lanes);
    }
  }
}

namespace detail {

template <int width>
void copy_vector(const float* from, float* to) {
  std::memcpy(to, from, width * sizeof(float));
}
template <int width>
void copy_vector(const Bf16* from, float* to) {
#pragma GCC unroll 32
  for (int i = 0; i < width; ++i) to[i] = from[i];
}

// Packs vectors that are adjacent in memory, by copies of `width` elements. Several panels are
// packed together, so that whole cache lines are read. Not all are, because panels may be a
// multiple of 4 KB apart, and a cache holds few such lines.
template <int width, class T, class Steps>
void pack_adjacent(const T* data, const Steps& steps, Index count, Index k, float* out) {
  constexpr Index together = std::max(1, 64 / width), rows_ahead = 24;
  const Index whole = count / width;
  for (Index panel = 0; panel < whole; panel += together) {
    const Index panels = std::min(together, whole - panel);
    // A vector may be wider than a panel; the next row overwrites the excess. So the last row
    // copies exact widths, and so does the last panel of each row, after which memory may end.
    // wider: number of panels that use vectors.
    const auto row = [&](Index l, Index wider) {
      const T* const from = data + steps[l] + panel * width;
      // After the last row, those of the next panels are prefetched.
      const T* const next = l + rows_ahead < k ? data + steps.ahead(l + rows_ahead, k) + panel * width
                                               : data + steps.ahead(l + rows_ahead - k, k) + (panel + panels) * width;
      for (Index i = 0; i < panels * width; i += 64 / Index{sizeof(T)}) __builtin_prefetch(next + i, 0, 2);
      float* const to = out + panel * width * k + l * width;
      for (Index i = 0; i < wider; ++i) store(to + i * width * k, load(from + i * width));
      for (Index i = wider; i < panels; ++i) copy_vector<width>(from + i * width, to + i * width * k);
    };
    for (Index l = 0; l < k; ++l) row(l, width < simd_width && l + 1 < k ? panels - 1 : 0);
  }
  const Index rest = count - whole * width;
  if (rest == 0) return;
  data += whole * width;
  out += whole * width * k;
  for (Index l = 0; l < k; ++l)
    for (Index i = 0; i < width; ++i) out[l * width + i] = i < rest ? float{data[steps[l] + i]} : 0.0f;
}

// Packs one panel of vectors that are contiguous, from vector `begin` on. It transposes squares of
// simd_width x simd_width, as many as fit k, and returns their length along k. Vectors from `count`
// on are zero.
template <int width, bool full, class T, class Lines>
Index pack_squares(const T* data, const Lines& lines, Index begin, Index count, Index k, float* out) {
  constexpr int rows = std::min(width, simd_width);
  // Squares of a cache line.
  constexpr Index squares = std::max<Index>(1, 64 / Index{sizeof(T)} / simd_width);
  const auto square = [&](Index l, int first) __attribute__((always_inline)) {
    float* const to = out + l * width + first;
    Vector v[simd_width] = {};
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
      if (full || begin + first + i < count) v[i] = load(data + lines[begin + first + i] + l);
    transpose(v);
    // If width is less than `simd_width`, it writes beyond its row, and the next row overwrites the
    // excess.
#pragma GCC unroll 16
    for (int i = 0; i < simd_width; ++i) store(to + i * width, v[i]);
  };
  // All of a cache line is used at once, because lines that are a multiple of 4 KB apart evict each
  // other.
  Index l = 0;
  for (; l + squares * simd_width <= k; l += squares * simd_width) {
#pragma GCC unroll 1
    for (int first = 0; first < width; first += simd_width) {
      // The hardware prefetcher does not follow this order of reads, so the next panel is
      // prefetched here.
      if (full)
#pragma GCC unroll 16
        for (int i = 0; i < rows; ++i)
          __builtin_prefetch(data + lines.ahead(begin + first + width + i, count) + l, 0, 2);
      for (Index s = 0; s < squares; ++s) square(l + s * simd_width, first);
    }
  }
  for (; l + simd_width <= k; l += simd_width)
#pragma GCC unroll 1
    for (int first = 0; first < width; first += simd_width) square(l, first);
  return l;
}

}  // namespace detail

// Start of vector i, or of element i of each vector: every `stride`, or by an index. Function
// ahead(i, n): the same for a prefetch, where i may exceed the n elements.
struct Strided {
  Index stride;
  Index operator[](Index i) const { return i * stride; }
  Index ahead(Index i, Index) const { return i * stride; }
  bool contiguous() const { return stride == 1; }
};
struct Indexed {
  const std::int32_t* index;
  Index stride;
  Index operator[](Index i) const { return index[i] * stride; }
  Index ahead(Index i, Index n) const { return index[std::min(i, n - 1)] * stride; }
  bool contiguous() const { return false; }
};

// Packs `count` vectors of k elements of f32 or bf16 into panels of `width` interleaved vectors.
// Element l of vector i is data[lines[i] + steps[l]]. It goes to out[(i / width) * width * k + l *
// width + i % width]. Zeros pad the last panel, and up to `simd_width` floats beyond it are
// written. Costs 8 bytes per float.
template <int width, class T, class Lines, class Steps>
void pack_axes(const T* data, const Lines& lines, const Steps& steps, Index count, Index k, float* out) {
  static_assert(width < simd_width || width % simd_width == 0);
  if (lines.contiguous()) return detail::pack_adjacent<width>(data, steps, count, k, out);
  for (Index begin = 0; begin < count; begin += width, out += width * k) {
    Index l = 0;
    if (steps.contiguous()) {
      l = count - begin >= width ? detail::pack_squares<width, true>(data, lines, begin, count, k, out)
                                 : detail::pack_squares<width, false>(data, lines, begin, count, k, out);
    }
    for (; l < k; ++l)
      for (int i = 0; i < width; ++i)
        out[l * width + i] = begin + i < count ? float{data[lines[begin + i] + steps[l]]} : 0.0f;
  }
}
// The same for vectors that are `stride` apart, whose elements are `k_stride` apart.
template <int width, class T>
void pack(const T* data, Index stride, Index k_stride, Index count, Index k, float* out) {
  pack_axes<width>(data, Strided{stride}, Strided{k_stride}, count, k, out);
}

// A thread's memory for packed operands. It grows on demand and is reused.
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
