// kernels/cpu is compiled once for each instruction set of a processor's vectors, so that one program is fast on every node. Which
// of them computes is decided at start, by what the processor and the system offer and by what $SWITCHYARD_ISA asks for.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "kernels/cpu/gemm.h"

namespace sy {

class Backend;

// How many threads the kernels compute with.
int cpu_threads();

// The kernels of one instruction set. This is all that the linker sees of their object (cmake/cpu.cmake): an inline function that
// is compiled with wider vectors must not take the place of the same one elsewhere.
struct CpuKernels {
  std::unique_ptr<Backend> (*make)(std::string_view isa);  // isa: its name, for describe()
  // The products alone, for their tests and benchmarks (kernels/cpu/gemm.h).
  decltype(&cpu::gemm) gemm, gemm_serial;
  decltype(&cpu::gemm_batch) gemm_batch;
  decltype(&cpu::packed_bytes) packed_bytes;
  decltype(&cpu::pack_operand) pack_operand;
  decltype(&cpu::multiply_adds) multiply_adds;
};

struct CpuIsa {
  std::string_view name;  // of $SWITCHYARD_ISA, and for people: "avx2"
  bool (*runs_here)();    // whether this processor has it and the system saves its registers
  const CpuKernels& kernels;
};

// Those that this program has, the narrowest first: who has one has those before it.
std::span<const CpuIsa> cpu_isas();

// Of `all` the widest that runs here, or the one of that name. Throws InputError where there is none of that name, or it does not
// run here; Error where none of them does.
const CpuIsa& choose_isa(std::span<const CpuIsa> all, std::string_view name);

// The one that make_cpu's backends compute with: choose_isa of $SWITCHYARD_ISA, until use_cpu_isa names another. Ranks
// agree on one by agree_on_isa (dist/runtime.h).
const CpuIsa& cpu_isa();
void use_cpu_isa(const CpuIsa& isa);

}  // namespace sy
