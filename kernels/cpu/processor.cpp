#include "kernels/cpu/processor.h"

#include <omp.h>

namespace sy {

int cpu_threads() {
  return omp_get_max_threads();
}

#if defined(__AVX512F__)
std::string_view kernel_simd() {
  return "AVX-512";
}
bool kernels_run_here() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#elif defined(__AVX2__)
std::string_view kernel_simd() {
  return "AVX2";
}
bool kernels_run_here() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#elif defined(__AVX__)
std::string_view kernel_simd() {
  return "AVX";
}
bool kernels_run_here() {
  return __builtin_cpu_supports("avx");
}
#else
std::string_view kernel_simd() {
  return "baseline";
}
bool kernels_run_here() {
  return true;
}
#endif

}  // namespace sy
