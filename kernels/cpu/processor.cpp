#include "kernels/cpu/processor.h"

#include <omp.h>
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sy {

int cpu_threads() {
  return omp_get_max_threads();
}

#if defined(__AMX_BF16__)
bool amx_permitted() {
  constexpr int request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request, tile_data) == 0;
}
#else
bool amx_permitted() {
  return true;
}
#endif

#if defined(__AVX512F__)
std::string_view kernel_simd() {
  return "AVX-512";
}
bool kernels_run_here() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && amx_permitted();
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
