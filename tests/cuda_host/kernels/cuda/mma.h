// The functions of the real kernels/cuda/mma.h, as exchanges between the lanes of a warp.
#pragma once

#include <bit>
#include <cstdint>

#include "host/block.h"
#include "kernels/cuda/device.h"

namespace sy::cuda {

inline std::uint32_t bf16_pair(float first, float second) {
  return bf16_of_float(first) | std::uint32_t{bf16_of_float(second)} << 16;
}

namespace mma_lanes {

inline std::uint32_t pair(bf16 first, bf16 second) {
  return first.bits | std::uint32_t{second.bits} << 16;
}

struct Operands {
  std::uint32_t a[4], b[2];
};
// Elements of a pair. These functions take most of the time of the emulator's attention tests.
inline float first(std::uint32_t pair) {
  return std::bit_cast<float>(pair << 16);
}
inline float second(std::uint32_t pair) {
  return std::bit_cast<float>(pair & 0xffff0000u);
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
  // Sums of C[g][2t], C[g][2t + 1], C[g + 8][2t] and C[g + 8][2t + 1].
  using Four = float __attribute__((vector_size(16)));
  Four sums{};
  for (int half = 0; half < 2; ++half)
    for (int q = 0; q < 4; ++q) {  // k = 8 half + 2q, and the next one
      const mma_lanes::Operands &rows = lanes[4 * g + q], &left = lanes[8 * t + q], &right = lanes[8 * t + 4 + q];
      const std::uint32_t upper = rows.a[2 * half], lower = rows.a[2 * half + 1], l = left.b[half], r = right.b[half];
      const float a0 = mma_lanes::first(upper), a8 = mma_lanes::first(lower);
      const float b0 = mma_lanes::first(l), b1 = mma_lanes::first(r);
      sums += Four{a0, a0, a8, a8} * Four{b0, b1, b0, b1};
      const float next_a0 = mma_lanes::second(upper), next_a8 = mma_lanes::second(lower);
      const float next_b0 = mma_lanes::second(l), next_b1 = mma_lanes::second(r);
      sums += Four{next_a0, next_a0, next_a8, next_a8} * Four{next_b0, next_b1, next_b0, next_b1};
    }
  for (int i = 0; i < 4; ++i) c[i] += sums[i];
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
