// Products of bf16 by pairs along k: a step adds a[2p] b[2p] + a[2p + 1] b[2p + 1] to a sum in f32. So do the tiles of AMX
// (tdpbf16ps) and the dot products of AVX512-BF16 (vdpbf16ps; Intel, "64 and IA-32 Architectures Software Developer's Manual",
// volume 2), and so does a loop, which says what both compute and runs everywhere.
//
// Operands are packed in steps of 32 along k, and completed by zeros:
//   left    panels of 32 rows:     [steps][32 rows][32 of k]           half of it is a tile of AMX
//   right   panels of 32 columns:  [steps][16 pairs][32 columns][2]    half of each line is one of a tile
//
// A unit multiplies a panel of each. It differs from the others in the order in which it adds the 32 products of a step, and
// AMX and AVX512-BF16 take for 0 what is too small for a normal float. No element of C depends on its place in the panel.
#pragma once

#include <algorithm>
#include <cstring>

#if defined(__AVX512BF16__) || defined(__AMX_BF16__)
#include <immintrin.h>
#endif

#include "kernels/cpu/gemm.h"

namespace sy::cpu {

constexpr Index pair_panel = 32, pair_step = 32, pair_block = pair_panel * pair_step;

// c: 32 rows of 32 floats, `stride` apart, (+)= left right. left, right: a packed panel of so many steps.
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
// Tiles 0 to 3 hold the sums, 4 and 5 halves of the left panel's step, 6 and 7 halves of the right one's. The processor keeps
// their shapes for the thread that made this; the system was asked for them when this instruction set was chosen.
struct AmxPairs {
  AmxPairs() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t line_bytes[16] = {};
      std::uint8_t lines[16] = {};
    } shapes;
    static_assert(sizeof shapes == 64);
    for (int t = 0; t < 8; ++t) shapes.line_bytes[t] = 64, shapes.lines[t] = 16;
    asm volatile("" : : "r"(&shapes) : "memory");  // GCC's intrinsic does not say what it reads
    _tile_loadconfig(&shapes);
  }
  ~AmxPairs() { _tile_release(); }
  AmxPairs(const AmxPairs&) = delete;
  AmxPairs& operator=(const AmxPairs&) = delete;

  void multiply(Index steps, const Bf16* left, const Bf16* right, float* c, Index stride, bool accumulate) const {
    asm volatile("" : : "r"(left), "r"(right), "r"(c) : "memory");  // nor do those that load tiles
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
    for (Index s = 0; s < steps; ++s, left += pair_block, right += pair_block) {
      _tile_loadd(4, left, 64);
      _tile_loadd(6, right, 128);
      _tile_loadd(7, right + 32, 128);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, left + 16 * pair_step, 64);
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

// Fills the panels of `count` rows or columns with `depth` of k each. fill(first, how many, panel) writes those from
// `first` on; where they or k do not fill a panel, it is zero before.
template <class Fill>
void fill_pair_panels(Index count, Index depth, Bf16* out, const Fill& fill) {
  const Index held = round_up(depth, pair_step), size = pair_panel * held;
  for (Index first = 0; first < count; first += pair_panel, out += size) {
    const Index here = std::min(pair_panel, count - first);
    if (here < pair_panel || held > depth) std::memset(out, 0, static_cast<std::size_t>(size * 2));
    fill(first, here, out);
  }
}

// Columns [l, l + depth) of rows [i, i + count) of a left operand of bf16, in panels.
inline void pack_left_pairs(const Matrix& a, Index i, Index count, Index l, Index depth, Bf16* out) {
  const Bf16* const data = reinterpret_cast<const Bf16*>(a.data);
  fill_pair_panels(count, depth, out, [&](Index first, Index rows, Bf16* panel) {
    for (Index s = 0; s < depth; s += pair_step) {
      Bf16* const to = panel + s * pair_panel;
      const Index n = std::min(pair_step, depth - s);
      if (a.row_stride == 1) {
        for (Index c = 0; c < n; ++c) {
          const Bf16* const from = data + a.at(i + first, l + s + c);
          for (Index r = 0; r < rows; ++r) to[r * pair_step + c] = from[r];
        }
      } else {
        for (Index r = 0; r < rows; ++r) {
          const Bf16* const from = data + a.at(i + first + r, l + s);
          for (Index c = 0; c < n; ++c) to[r * pair_step + c] = from[c * a.col_stride];
        }
      }
    }
  });
}

// Rows [l, l + depth) of columns [j, j + count) of a right operand of bf16, in panels.
inline void pack_right_pairs(const Matrix& b, Index l, Index depth, Index j, Index count, Bf16* out) {
  const Bf16* const data = reinterpret_cast<const Bf16*>(b.data);
  fill_pair_panels(count, depth, out, [&](Index first, Index cols, Bf16* panel) {
    for (Index k = 0; k < depth; ++k) {
      Bf16* const to = panel + k / 2 * 2 * pair_panel + k % 2;
      const Bf16* const from = data + b.at(l + k, j + first);
      for (Index c = 0; c < cols; ++c) to[2 * c] = from[c * b.col_stride];
    }
  });
}

}  // namespace sy::cpu
