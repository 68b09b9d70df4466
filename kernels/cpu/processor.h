// What reports say of the processor and of how the CPU kernels use it.
#pragma once

#include <string_view>

namespace sy {

// How many threads the kernels compute with.
int cpu_threads();

// The widest vector instructions that the kernels were compiled for: "AVX-512", "AVX2", "AVX", or "baseline" for what
// every machine has; and whether this machine has them. Where it has not, the kernels end in an illegal instruction.
std::string_view kernel_simd();
bool kernels_run_here();

// Asks the system for the tiles of AMX, where the kernels were compiled for them; false where it has none. Once a process, before
// threads are made.
bool amx_permitted();

}  // namespace sy
