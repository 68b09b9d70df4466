#include "kernels/cpu/processor.h"

#include <omp.h>
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <vector>

#include "kernels/device.h"
#include "kernels/environment.h"

// Each symbol is in the object of its instruction set.
extern "C" {
extern const sy::CpuKernels switchyard_cpu_sse42, switchyard_cpu_avx2, switchyard_cpu_avx512, switchyard_cpu_avx512bf16,
    switchyard_cpu_amx, switchyard_cpu_neon, switchyard_cpu_baseline;
}

namespace sy {
namespace {

#if defined(__x86_64__)
bool has_avx512bf16() {
  return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16");
}
// A VDPBF16PS multiplies twice as many pairs as an f32 FMA. On an Intel Emerald Rapids it takes
// four times as long (1.3 and 5.4 billion a second on one core). Widening bf16 to f32 is faster.
bool fast_avx512bf16() {
  return !__builtin_cpu_is("intel");
}
// The system grants tile registers to a process that requests them.
bool has_amx() {
  constexpr int request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return has_avx512bf16() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         syscall(SYS_arch_prctl, request, tile_data) == 0;
}
#endif

// SWITCHYARD_HAS_*: the instruction sets that cmake/cpu.cmake compiles the kernels for.
const CpuIsa isas[] = {
#ifdef SWITCHYARD_HAS_SSE42
    {"sse42", [] { return __builtin_cpu_supports("x86-64-v2") != 0; }, switchyard_cpu_sse42},
#endif
#ifdef SWITCHYARD_HAS_AVX2
    {"avx2", [] { return __builtin_cpu_supports("x86-64-v3") != 0; }, switchyard_cpu_avx2},
#endif
#ifdef SWITCHYARD_HAS_AVX512
    {"avx512", [] { return __builtin_cpu_supports("x86-64-v4") != 0; }, switchyard_cpu_avx512},
#endif
#ifdef SWITCHYARD_HAS_AVX512BF16
    {"avx512bf16", has_avx512bf16, switchyard_cpu_avx512bf16, fast_avx512bf16},
#endif
#ifdef SWITCHYARD_HAS_AMX
    {"amx", has_amx, switchyard_cpu_amx},
#endif
#ifdef SWITCHYARD_HAS_NEON
    {"neon", [] { return true; }, switchyard_cpu_neon},
#endif
#ifdef SWITCHYARD_HAS_BASELINE
    {"baseline", [] { return true; }, switchyard_cpu_baseline},
#endif
};

const CpuIsa*& chosen() {
  static const CpuIsa* isa = [] {
    const char* const name = environment("SWITCHYARD_ISA");
    return &choose_isa(isas, name ? name : "");
  }();
  return isa;
}

}  // namespace

int cpu_threads() {
  return omp_get_max_threads();
}

std::span<const CpuIsa> cpu_isas() {
  return isas;
}

const CpuIsa& choose_isa(std::span<const CpuIsa> all, std::string_view name) {
  std::vector<std::string_view> here;
  const CpuIsa* found = nullptr;
  bool known = false;
  for (const CpuIsa& isa : all) {
    known |= isa.name == name;
    if (!isa.runs_here()) continue;
    here.push_back(isa.name);
    if (name.empty() ? !found || isa.fast_here() : isa.name == name) found = &isa;
  }
  if (here.empty())
    fail("this processor lacks {}, which the CPU kernels need at least: use another machine", all[0].name);
  if (!found)
    bad_input("SWITCHYARD_ISA = '{}': {}: set it to {}, or unset it", name,
              known ? "this processor lacks it" : "there is no such instruction set", fmt::join(here, " or "));
  return *found;
}

const CpuIsa& cpu_isa() {
  return *chosen();
}

void use_cpu_isa(const CpuIsa& isa) {
  chosen() = &isa;
}

std::unique_ptr<Device> make_cpu() {
  return cpu_isa().kernels.make(cpu_isa().name);
}

}  // namespace sy
