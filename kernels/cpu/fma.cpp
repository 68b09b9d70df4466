#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tile.h"

namespace sy::cpu {

double multiply_adds(Index rounds) {
  // Enough to hide a latency of 4 to 6 cycles on two units; they fit 16 registers.
  constexpr int chains = 12;
  Vector sum[chains] = {};
  const Vector factor = Vector{} + 0.999f, term = Vector{} + 1e-3f;
  for (Index i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < chains; ++j) sum[j] = sum[j] * factor + term;
      // The compiler must assume that all twelve are needed in every round.
#pragma GCC unroll 16
    for (int j = 0; j < chains; ++j) {
#if defined(__x86_64__)
      asm volatile("" : "+v"(sum[j]));
#else
      asm volatile("" : "+w"(sum[j]));
#endif
    }
  }
  return 2.0 * simd_width * chains * static_cast<double>(rounds);
}

}  // namespace sy::cpu
