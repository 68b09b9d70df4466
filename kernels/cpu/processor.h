// The processor as the CPU kernels see it, for reports.
#pragma once

#include <string_view>

namespace sy {

// Threads that the kernels compute with.
int cpu_threads();

// The widest vector instructions that the kernels were compiled for ("AVX-512", "AVX2", "AVX"; "baseline": the
// compiler's own), and whether this machine has them: where not, the kernels end in an illegal instruction.
std::string_view kernel_simd();
bool kernels_run_here();

}  // namespace sy
