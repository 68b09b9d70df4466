// Choice of the instruction set of the CPU kernels. kernels/cpu is compiled once for each vector
// instruction set, so that one program is fast on every node. At start, the processor, the system
// and $SWITCHYARD_ISA determine which one computes.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "kernels/cpu/gemm.h"

namespace sy {

class Device;

// Number of threads of the kernels.
int cpu_threads();

// The kernels of one instruction set. The linker sees no other symbol of their object
// (cmake/cpu.cmake). Otherwise an inline function that is compiled with wider vectors could replace
// the same function elsewhere.
struct CpuKernels {
  std::unique_ptr<Device> (*make)(std::string_view isa);  // isa: its name, for describe()
  // The products alone, for tests and benchmarks (kernels/cpu/gemm.h).
  decltype(&cpu::gemm_batch) gemm_batch;
  decltype(&cpu::packed_bytes) packed_bytes;
  decltype(&cpu::pack_operand) pack_operand;
  decltype(&cpu::multiply_adds) multiply_adds;
};

struct CpuIsa {
  std::string_view name;  // value of $SWITCHYARD_ISA, and for people: "avx2"
  bool (*runs_here)();    // whether this processor has it and the system saves its registers
  const CpuKernels& kernels;
  // Whether it is faster here than the narrower ones. Otherwise $SWITCHYARD_ISA alone selects it.
  bool (*fast_here)() = [] { return true; };
};

// The instruction sets of this program, the narrowest first. A processor that has one also has
// those before it.
std::span<const CpuIsa> cpu_isas();

// Returns the one of `all` called `name`. With an empty name it returns the widest that runs here
// and is fast here, or the narrowest that runs here if none is fast. Throws InputError if the name
// is unknown or does not run here. Throws Error if no instruction set of `all` runs here.
const CpuIsa& choose_isa(std::span<const CpuIsa> all, std::string_view name);

// The instruction set of make_cpu's backends: choose_isa of $SWITCHYARD_ISA, or the last
// use_cpu_isa. Ranks agree on one by agree_on_isa (dist/machine.h).
const CpuIsa& cpu_isa();
void use_cpu_isa(const CpuIsa& isa);

}  // namespace sy
