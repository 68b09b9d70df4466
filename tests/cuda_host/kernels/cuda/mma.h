// The functions of the real kernels/cuda/mma.h, as exchanges between the lanes of a warp.
#pragma once

#include <cstdint>

#include "host/block.h"
#include "kernels/cuda/device.h"

namespace sy::cuda {

inline std::uint32_t bf16_pair(float first, float second) {
  return bf16_of_float(first) | std::uint32_t{bf16_of_float(second)} << 16;
}

namespace mma_lanes {

inline float element(std::uint32_t pair, int i) {
  return float_of_bf16(static_cast<std::uint16_t>(i == 0 ? pair & 0xffff : pair >> 16));
}
inline std::uint32_t pair(bf16 first, bf16 second) {
  return first.bits | std::uint32_t{second.bits} << 16;
}

struct Operands {
  std::uint32_t a[4], b[2];
};
// Elements A[row][k] and B[k][column], read from the lanes that hold them.
inline float a(const cuda_host::Exchange<Operands>& lanes, int row, int k) {
  return element(lanes[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k % 2);
}
inline float b(const cuda_host::Exchange<Operands>& lanes, int k, int column) {
  return element(lanes[column * 4 + k % 8 / 2].b[k / 8], k % 2);
}

// Checks the first element of a row of the four matrices. The lanes pass 4 x 8 rows.
inline const bf16* checked_row(const bf16* row) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) cuda_host::mistake("a row of a matrix not aligned to 16 bytes");
  return row;
}

}  // namespace mma_lanes

inline void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const cuda_host::Exchange<mma_lanes::Operands> lanes(0xffffffffu, {{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int g = cuda_host::lane() / 4, t = cuda_host::lane() % 4;
  for (int i = 0; i < 4; ++i) {
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += mma_lanes::a(lanes, g + i / 2 * 8, k) * mma_lanes::b(lanes, k, 2 * t + i % 2);
    c[i] += sum;
  }
}

inline void load_matrices(std::uint32_t (&x)[4], const bf16* row) {
  const cuda_host::Exchange<const bf16*> rows(0xffffffffu, mma_lanes::checked_row(row));
  const int g = cuda_host::lane() / 4, t = cuda_host::lane() % 4;
  for (int i = 0; i < 4; ++i) x[i] = mma_lanes::pair(rows[8 * i + g][2 * t], rows[8 * i + g][2 * t + 1]);
}
inline void load_matrices_transposed(std::uint32_t (&x)[4], const bf16* row) {
  const cuda_host::Exchange<const bf16*> rows(0xffffffffu, mma_lanes::checked_row(row));
  const int g = cuda_host::lane() / 4, t = cuda_host::lane() % 4;
  for (int i = 0; i < 4; ++i) x[i] = mma_lanes::pair(rows[8 * i + 2 * t][g], rows[8 * i + 2 * t + 1][g]);
}

}  // namespace sy::cuda
