// bf16 products by pairs along k: a step adds a[2p] b[2p] + a[2p + 1] b[2p + 1] to an f32 sum.
// Three units compute this:
//   * AMX tiles (tdpbf16ps)
//   * AVX512-BF16 dot products (vdpbf16ps); for both see Intel, "64 and IA-32 Architectures
//     Software Developer's Manual", volume 2
//   * a portable loop, which defines the result and runs everywhere
//
// Operands are packed in steps of 32 along k, and padded with zeros:
//   left    panels of 32 rows:     [steps][32 rows][32 of k]           one half is an AMX tile
//   right   panels of 32 columns:  [steps][16 pairs][32 columns][2]    half of each line is a line
//           of a tile
//
// A unit multiplies one panel of each. Units differ in the order in which they add the 32 products
// of a step. AMX and AVX512-BF16 also treat subnormal floats as 0. No element of C depends on its
// position in the panel.
#pragma once

#include <algorithm>
#include <cstring>

#if defined(__AVX512BF16__) || defined(__AMX_BF16__)
#include <immintrin.h>
#endif

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"

namespace sy::cpu {

constexpr Index pair_panel = 32, pair_step = 32, pair_block = pair_panel * pair_step;

// c: 32 rows of 32 floats, `stride` apart, (+)= left right. left, right: packed panels of `steps`
// steps.
struct PortablePairs {
  void multiply(Index steps, const Bf16* left, const Bf16* right, float* c, Index stride, bool accumulate) const {
    for (Index i = 0; i < pair_panel; ++i) {
      float sum[pair_panel] = {};
      if (accumulate) std::copy_n(c + i * stride, pair_panel, sum);
      for (Index s = 0; s < steps; ++s)
        for (Index p = 0; p < pair_step / 2; ++p) {
          const Bf16* const a = left + s * pair_block + i * pair_step + 2 * p;
          const Bf16* const b = right + s * pair_block + p * 2 * pair_panel;
          for (Index j = 0; j < pair_panel; ++j) sum[j] += a[0] * b[2 * j] + a[1] * b[2 * j + 1];
        }
      std::copy_n(sum, pair_panel, c + i * stride);
    }
  }
};

#if defined(__AVX512BF16__)
struct Avx512Pairs {
  void multiply(Index steps, const Bf16* left, const Bf16* right, float* c, Index stride, bool accumulate) const {
    constexpr int rows = 8;  // with two vectors of sums each
    for (Index first = 0; first < pair_panel; first += rows) {
      __m512 sum[rows][2];
      for (int i = 0; i < rows; ++i)
        for (int j = 0; j < 2; ++j)
          sum[i][j] = accumulate ? _mm512_loadu_ps(c + (first + i) * stride + 16 * j) : _mm512_setzero_ps();
      for (Index s = 0; s < steps; ++s)
        for (Index p = 0; p < pair_step / 2; ++p) {
          const Bf16* const a = left + s * pair_block + first * pair_step + 2 * p;
          const Bf16* const b = right + s * pair_block + p * 2 * pair_panel;
          const auto b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 32);
#pragma GCC unroll 8
          for (int i = 0; i < rows; ++i) {
            std::int32_t pair;
            std::memcpy(&pair, a + i * pair_step, sizeof pair);
            const auto both = (__m512bh)_mm512_set1_epi32(pair);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], both, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], both, b1);
          }
        }
      for (int i = 0; i < rows; ++i)
        for (int j = 0; j < 2; ++j) _mm512_storeu_ps(c + (first + i) * stride + 16 * j, sum[i][j]);
    }
  }
};
#endif

#if defined(__AMX_BF16__)
// Tiles 0 to 3 hold the sums. Tiles 4 and 5 hold halves of the left panel's step, 6 and 7 halves of
// the right one's. The processor stores the tile shapes for the thread that constructed this
// object. Permission for tiles is requested when this instruction set is chosen.
struct AmxPairs {
  AmxPairs() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t line_bytes[16] = {};
      std::uint8_t lines[16] = {};
    } shapes;
    static_assert(sizeof shapes == 64);
    for (int t = 0; t < 8; ++t) shapes.line_bytes[t] = 64, shapes.lines[t] = 16;
    // GCC's intrinsic does not declare its read of memory
    asm volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
  }
  ~AmxPairs() { _tile_release(); }
  AmxPairs(const AmxPairs&) = delete;
  AmxPairs& operator=(const AmxPairs&) = delete;

  void multiply(Index steps, const Bf16* left, const Bf16* right, float* c, Index stride, bool accumulate) const {
    // The tile loads do not declare theirs, either.
    asm volatile("" : : "r"(left), "r"(right), "r"(c) : "memory");
    const Index bytes = stride * 4;
    float* const below = c + 16 * stride;
    if (accumulate) {
      _tile_loadd(0, c, bytes);
      _tile_loadd(1, c + 16, bytes);
      _tile_loadd(2, below, bytes);
      _tile_loadd(3, below + 16, bytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    // The sums to the right come next, and may not be in a cache: each step prefetches a few of
    // their rows.
    const float* next = c + pair_panel;
    const Index rows = ceil_div(pair_panel, steps);
    for (Index s = 0; s < steps; ++s, left += pair_block, right += pair_block) {
      for (Index i = 0; i < rows; ++i, next += stride) {
        __builtin_prefetch(next, 1);
        __builtin_prefetch(next + 16, 1);
      }
      _tile_loadd(4, left, 64);
      _tile_loadd(6, right, 128);
      _tile_loadd(7, right + 32, 128);
      _tile_loadd(5, left + 16 * pair_step, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, bytes);
    _tile_stored(1, c + 16, bytes);
    _tile_stored(2, below, bytes);
    _tile_stored(3, below + 16, bytes);
  }
};
#endif

// A bf16 operand as lines in its contiguous direction: rows [first, first + count) and columns [l,
// l + depth).
class PairLines {
 public:
  PairLines(const Matrix& m, Index i, Index rows, Index j, Index cols)
      : data_(reinterpret_cast<const Bf16*>(m.data)),
        columns_(m.row_stride == 1),
        lines_(columns_ ? Axis{j, cols, m.col_stride, m.col_index} : Axis{i, rows, m.row_stride, m.row_index}),
        elements_(columns_ ? Axis{i, rows, m.row_stride, m.row_index} : Axis{j, cols, m.col_stride, m.col_index}) {}
  // Whether a line is a column.
  bool columns() const { return columns_; }

  // The 32 elements from `first` on of a line; elements beyond the operand are zero. If they are
  // not contiguous in the operand, they are copied to `memory`.
  const Bf16* at(Index line, Index first, Bf16* memory) const {
    if (line < lines_.count && first + pair_step <= elements_.count && elements_.contiguous())
      return data_ + lines_.at(line) + elements_.at(first);
    std::fill_n(memory, pair_step, Bf16{});
    if (line < lines_.count)
      for (Index e = first; e < std::min(first + pair_step, elements_.count); ++e)
        memory[e - first] = data_[lines_.at(line) + elements_.at(e)];
    return memory;
  }
  // Prefetches these elements, if the operand has them.
  void prefetch(Index line, Index first) const {
    if (line < lines_.count && first < elements_.count)
      __builtin_prefetch(data_ + lines_.at(line) + elements_.at(first), 0, 2);
  }

 private:
  struct Axis {
    Index first, count, stride;
    const std::int32_t* index;
    Index at(Index i) const { return (index ? index[first + i] : first + i) * stride; }
    bool contiguous() const { return stride == 1 && !index; }
  };
  const Bf16* data_;
  bool columns_;
  Axis lines_, elements_;
};

// Transposes pairs, which are moved as if they were floats. `columns` lines of `rows` pairs,
// from(line, pair), become `rows` lines of `columns` pairs at `to`.
template <Index rows, Index columns, class From>
void transpose_pairs(const From& from, Bf16* to) {
  for (Index c = 0; c < columns; c += simd_width)
    for (Index r = 0; r < rows; r += simd_width) {
      Vector v[simd_width];
#pragma GCC unroll 16
      for (int i = 0; i < simd_width; ++i) v[i] = load(reinterpret_cast<const float*>(from(c + i, r)));
      transpose(v);
#pragma GCC unroll 16
      for (int i = 0; i < simd_width; ++i) store(reinterpret_cast<float*>(to + 2 * ((r + i) * columns + c)), v[i]);
    }
}
// A vector of pairs: the lower halves come from `even`, the upper ones from `odd`.
inline Vector pair(const Bf16* even, const Bf16* odd) {
  typedef std::uint32_t Bits __attribute__((vector_size(simd_width * 4)));
  return std::bit_cast<Vector>(std::bit_cast<Bits>(load(even)) >> 16 | std::bit_cast<Bits>(load(odd)));
}
// Interleaves lines [line, line + 32) in pairs of lines, for `count` elements from `first` on. Each
// 32 elements become [16 pairs][32 elements]; these blocks are `apart` elements apart. Memory is
// read line by line, which suits the hardware prefetcher.
inline void pair_lines(const PairLines& lines_of, Index line, Index first, Index count, Bf16* to, Index apart) {
  for (Index p = 0; p < pair_step / 2; ++p, to += 2 * pair_panel)
    for (Index c = 0; c < count; c += pair_panel) {
      Bf16 memory[2][pair_step];
      const Bf16* const even = lines_of.at(line + 2 * p, first + c, memory[0]);
      const Bf16* const odd = lines_of.at(line + 2 * p + 1, first + c, memory[1]);
      float* const pairs = reinterpret_cast<float*>(to + c / pair_panel * apart);
      for (Index i = 0; i < pair_panel; i += simd_width) store(pairs + i, pair(even + i, odd + i));
    }
}

// Packs columns [l, l + depth) of rows [i, i + count) of a left bf16 operand into panels.
inline void pack_left_pairs(const Matrix& a, Index i, Index count, Index l, Index depth, Bf16* out) {
  constexpr Index pairs = pair_step / 2, together = 8;  // of panels
  const PairLines lines_of(a, i, count, l, depth);
  const Index padded_depth = round_up(depth, pair_step);
  if (lines_of.columns()) {
    for (Index s = 0; s < depth; s += pair_step)
      for (Index r = 0; r < count; r += together * pair_panel) {
        Bf16 squares[together][pair_block];
        const Index here = std::min(together * pair_panel, count - r);
        pair_lines(lines_of, s, r, here, squares[0], pair_block);
        for (Index q = 0; q < here; q += pair_panel) {
          const Bf16* const square = squares[q / pair_panel];
          transpose_pairs<pair_panel, pairs>([&](Index p, Index row) { return square + 2 * (p * pair_panel + row); },
                                             out + (r + q) * padded_depth + s * pair_panel);
        }
      }
    return;
  }
  for (Index r = 0; r < round_up(count, pair_panel); ++r) {
    Bf16* to = out + r / pair_panel * pair_panel * padded_depth + r % pair_panel * pair_step;
    for (Index s = 0; s < depth; s += pair_step, to += pair_block) {
      const Bf16* const from = lines_of.at(r, s, to);
      if (from != to) std::memcpy(to, from, pair_step * sizeof(Bf16));
    }
  }
}

// Packs rows [l, l + depth) of columns [j, j + count) of a right bf16 operand into panels.
inline void pack_right_pairs(const Matrix& b, Index l, Index depth, Index j, Index count, Bf16* out) {
  constexpr Index pairs = pair_step / 2;
  const PairLines lines_of(b, l, depth, j, count);
  const Index padded_depth = round_up(depth, pair_step), steps = padded_depth / pair_step;
  if (!lines_of.columns()) {
    for (Index s = 0; s < depth; s += pair_step)
      pair_lines(lines_of, s, 0, count, out + s * pair_panel, pair_panel * padded_depth);
    return;
  }
  for (Index c = 0; c < count; c += pair_panel)
    for (Index s = 0; s < steps; ++s, out += pair_block) {
      Bf16 memory[pair_panel][pair_step];
      const Bf16* line[pair_panel];
      for (Index n = 0; n < pair_panel; ++n) {
        line[n] = lines_of.at(c + n, s * pair_step, memory[n]);
        // Prefetches the lines of the next panel one after the other, which suits the hardware
        // prefetcher.
        const Index next = s * pair_panel + n;
        lines_of.prefetch(c + pair_panel + next / steps, next % steps * pair_step);
      }
      transpose_pairs<pairs, pair_panel>([&](Index n, Index p) { return line[n] + 2 * p; }, out);
    }
}

}  // namespace sy::cpu
