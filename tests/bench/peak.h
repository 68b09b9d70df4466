// Roofs of the machine: the peak of fp32 fused multiply-adds, under which CPU products are quoted,
// and the speed of memory.
#pragma once

#include <omp.h>
#include <sys/mman.h>

#include <cstdlib>
#include <memory>

#include "kernels/cpu/processor.h"
#include "tests/bench/timing.h"

namespace sy::bench {

// Measures the FLOP/s of independent FMAs on registers, over all OpenMP threads, with the kernels'
// instruction set. A multiply and an add are two FLOP. Returns the best of several runs, because
// other processes may take the cores.
inline double measured_fma_peak(double seconds = 0.3) {
  const auto multiply_adds = cpu_isa().kernels.multiply_adds;
  double best = 0;
  const double start = seconds_now();
  do {
    double flops = 0;
    const double begin = seconds_now();
#pragma omp parallel reduction(+ : flops)
    flops += multiply_adds(Index{1} << 20);
    best = std::max(best, flops / (seconds_now() - begin));
  } while (seconds_now() - start < seconds);
  return best;
}

// Measures the bytes/s at which all OpenMP threads together read memory that no cache holds.
// Returns the best of several runs. This is the roof of decoding, which reads every weight once per
// pass.
inline double measured_read_bytes() {
  constexpr std::size_t n = std::size_t{1} << 26, huge = std::size_t{1} << 21;
  const std::unique_ptr<std::uint32_t, decltype(&std::free)> memory(
      static_cast<std::uint32_t*>(std::aligned_alloc(huge, n * sizeof(std::uint32_t))), &std::free);
  std::uint32_t* const x = memory.get();
  madvise(x, n * sizeof(x[0]), MADV_HUGEPAGE);  // as the cpu device does
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

// Returns the least seconds of one run. After one run to warm up, it runs at least five times, and
// until 0.3 seconds have passed (at most 2,000 times).
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
