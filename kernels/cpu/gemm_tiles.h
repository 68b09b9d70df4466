// Kinds of tiles of a GEMM, and the packed panels that they read. For gemm.cpp alone.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/tile.h"

namespace sy::cpu {
namespace {

// A panel is the block of an operand that a tile reads. It has `rows` rows of A, or `cols` columns
// of B, and one block of k. The two kinds of tiles differ in these members:
//   Packed            the type of a panel's elements
//   step              a panel's length along k is a multiple of it, padded with zeros
//   max_k_block       the longest block of k: one panel of it stays in the L1 cache
//   k_multiple        a block's length is a multiple of it, which makes whole cache lines
//   b_stays           true: a panel of B stays in the L1 cache while panels of A are streamed;
//                     false: the reverse
//   a_panels          number of panels of A that are packed together; they stay in the L2 cache
//   overrun           number of elements that packing may write after the last panel of A
//   pack_rows         packs rows [i, i + count) of columns [l, l + depth) of A
//   pack_columns      packs columns [j, j + count) of rows [l, l + depth) of B
//   multiply          m <= rows x n <= cols elements of c (+)= the product of two panels; rows of c
//                     are `stride` apart

// Tiles of floats (tile.h). bf16 is widened when it is packed.
struct FloatTiles {
  using Packed = float;
  static constexpr Index rows = tile_rows, cols = tile_cols, step = 1, max_k_block = 384, k_multiple = 16, a_panels = 8,
                         overrun = simd_width;
  // Whether a panel of B fits the L1 cache besides a panel of A.
  static constexpr bool b_stays = cols * max_k_block * Index{sizeof(float)} <= 24 * 1024;

  // Rows or columns of a matrix, from number `first` on: every `stride`, or by an index.
  struct Axis {
    Index first, stride;
    const std::int32_t* index;
  };
  // Calls pack() of tile.h.
  template <int width>
  static void pack_vectors(const Matrix& m, Axis lines, Axis steps, Index count, Index k, float* out) {
    const auto run = [&](const auto* data) {
      if (!lines.index) data += lines.first * lines.stride;
      if (!steps.index) data += steps.first * steps.stride;
      if (lines.index)
        pack_axes<width>(data, Indexed{lines.index + lines.first, lines.stride}, Strided{steps.stride}, count, k, out);
      else if (steps.index)
        pack_axes<width>(data, Strided{lines.stride}, Indexed{steps.index + steps.first, steps.stride}, count, k, out);
      else
        pack<width>(data, lines.stride, steps.stride, count, k, out);
    };
    if (m.dtype == DType::bf16)
      run(reinterpret_cast<const Bf16*>(m.data));
    else
      run(reinterpret_cast<const float*>(m.data));
  }
  static void pack_rows(const Matrix& a, Index i, Index count, Index l, Index depth, float* out) {
    pack_vectors<tile_rows>(a, {i, a.row_stride, a.row_index}, {l, a.col_stride, a.col_index}, count, depth, out);
  }
  static void pack_columns(const Matrix& b, Index l, Index depth, Index j, Index count, float* out) {
    pack_vectors<tile_cols>(b, {j, b.col_stride, b.col_index}, {l, b.row_stride, b.row_index}, count, depth, out);
  }
  void multiply(Index m, Index n, Index k, const float* a, const float* b, float* c, Index stride, bool accumulate) {
    Tiles<1, tile_rows>::run(m, k, a, b, tile_cols, c, stride, n, accumulate);
  }
};

// Pairs of bf16 (pairs.h).
template <class Unit>
struct PairTiles {
  using Packed = Bf16;
  static constexpr Index rows = pair_panel, cols = pair_panel, step = pair_step, max_k_block = 512, k_multiple = 32,
                         a_panels = 16, overrun = 0;
  static constexpr bool b_stays = false;

  static constexpr auto pack_rows = pack_left_pairs, pack_columns = pack_right_pairs;
  void multiply(Index m, Index n, Index k, const Bf16* a, const Bf16* b, float* c, Index stride, bool accumulate) {
    const Index steps = ceil_div(k, pair_step);
    if (m == rows && n == cols) return unit.multiply(steps, a, b, c, stride, accumulate);
    float whole[rows * cols] = {};
    if (accumulate)
      for (Index i = 0; i < m; ++i) std::copy_n(c + i * stride, n, whole + i * cols);
    unit.multiply(steps, a, b, whole, cols, accumulate);
    for (Index i = 0; i < m; ++i) std::copy_n(whole + i * cols, n, c + i * stride);
  }
  Unit unit;
};

#if defined(__AMX_BF16__)
using NativePairs = PairTiles<AmxPairs>;
constexpr bool has_pairs = true;
#elif defined(__AVX512BF16__)
using NativePairs = PairTiles<Avx512Pairs>;
constexpr bool has_pairs = true;
#else
using NativePairs = PairTiles<PortablePairs>;
constexpr bool has_pairs = false;
#endif

// Calls body with the type of the tiles that multiply operands of `type`.
template <class Body>
auto with_tiles(DType type, Multiply how, const Body& body) {
  if (type == DType::bf16 && how == Multiply::portable_pairs)
    return body(std::type_identity<PairTiles<PortablePairs>>{});
  if (type == DType::bf16 && how == Multiply::best && has_pairs) return body(std::type_identity<NativePairs>{});
  return body(std::type_identity<FloatTiles>{});
}

// Number of rows of A that are packed together.
template <class Panels>
constexpr Index a_rows = Panels::a_panels* Panels::rows;

// Blocks have equal lengths, so that none is short, and are whole cache lines long.
template <class Panels>
Index k_block(Index k) {
  return round_up(ceil_div(k, ceil_div(k, Panels::max_k_block)), Panels::k_multiple);
}

// Address of the panel of columns from j on in rows [l, l + depth) of a packed operand of n
// columns. The operand is a sequence of blocks of rows, each of which is a sequence of panels. It
// may be const, or in the process of being packed.
template <class Panels, class Packed>
Packed* packed_panel(Packed* packed, Index n, Index l, Index depth, Index j) {
  return packed + l * round_up(n, Panels::cols) + j * round_up(depth, Panels::step);
}

}  // namespace
}  // namespace sy::cpu
