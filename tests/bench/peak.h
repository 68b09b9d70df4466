// The machine's fp32 fused-multiply-add peak, the roof under which the CPU's products are quoted, and the speed of its memory.
#pragma once

#include <omp.h>
#include <sys/mman.h>

#include <cstdlib>
#include <memory>

#include "tests/bench/timing.h"

namespace sy::bench {

// FLOP/s of independent FMAs that touch registers alone, over all OpenMP threads; a multiply and an add are
// two FLOP. The best of several runs, as another process may take the cores. Compile with the flags of the
// kernels.
inline double measured_fma_peak(double seconds = 0.3) {
#if defined(__AVX512F__)
  constexpr int bytes = 64;
#elif defined(__AVX__)
  constexpr int bytes = 32;
#else
  constexpr int bytes = 16;
#endif
  typedef float Vector __attribute__((vector_size(bytes)));
  constexpr int chains = 12;  // enough to hide a latency of 4-6 cycles on two units; fits 16 registers
  constexpr long rounds = 1 << 20;
  double best = 0;
  const double start = seconds_now();
  do {
    const int threads = omp_get_max_threads();
    const double begin = seconds_now();
#pragma omp parallel num_threads(threads)
    {
      Vector sum[chains] = {};
      Vector factor = Vector{} + 0.999f, term = Vector{} + 1e-3f;
      for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (int j = 0; j < chains; ++j) sum[j] = sum[j] * factor + term;
          // The compiler must believe that all twelve are needed in every round.
#pragma GCC unroll 16
        for (int j = 0; j < chains; ++j) {
#if defined(__x86_64__)
          asm volatile("" : "+v"(sum[j]));
#else
          asm volatile("" : "+w"(sum[j]));
#endif
        }
      }
    }
    const double elapsed = seconds_now() - begin;
    best = std::max(best, 2.0 * (bytes / 4) * chains * double(rounds) * threads / elapsed);
  } while (seconds_now() - start < seconds);
  return best;
}

// Bytes/s at which all OpenMP threads together read memory that no cache holds, the best of several runs: the roof of
// decoding, which reads every weight once a pass.
inline double measured_read_bytes() {
  constexpr std::size_t n = std::size_t{1} << 26, huge = std::size_t{1} << 21;
  const std::unique_ptr<std::uint32_t, decltype(&std::free)> memory(
      static_cast<std::uint32_t*>(std::aligned_alloc(huge, n * sizeof(std::uint32_t))), &std::free);
  std::uint32_t* const x = memory.get();
  madvise(x, n * sizeof(x[0]), MADV_HUGEPAGE);  // as the backend asks for its memory
  std::fill_n(x, n, 1);
  double best = 0;
  for (int run = 0; run < 7; ++run) {
    const double begin = seconds_now();
    std::uint32_t sum = 1;
#pragma omp parallel for simd reduction(^ : sum) schedule(static)
    for (std::size_t i = 0; i < n; ++i) sum ^= x[i];
    const double elapsed = seconds_now() - begin;
    if (sum > 0) best = std::max(best, static_cast<double>(n * sizeof(x[0])) / elapsed);
  }
  return best;
}

// The least time of one run, of at least five and as many as 0.3 seconds hold, after one to warm up.
template <class Run>
double best_seconds(const Run& run) {
  run();
  double best = 1e30;
  const double start = seconds_now();
  for (int i = 0; i < 5 || (seconds_now() - start < 0.3 && i < 2000); ++i) {
    const double begin = seconds_now();
    run();
    best = std::min(best, seconds_now() - begin);
  }
  return best;
}

}  // namespace sy::bench
