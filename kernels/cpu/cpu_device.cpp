// Memory of the cpu device. Kernels are in the files of their topics.
#include "kernels/cpu/cpu_device.h"

#include <omp.h>
#include <sys/mman.h>

#include <cstdlib>

#include "kernels/control_groups.h"
#include "kernels/cpu/processor.h"
#include "kernels/kernel_table.h"

namespace sy::cpu {

class CpuDevice final : public Device {
 public:
  // isa: name of the instruction set that this file is compiled for
  explicit CpuDevice(std::string_view isa) : Device(kernel_table<CpuDevice>()), isa_(isa) {}
  std::string_view name() const override { return "cpu"; }
  std::string describe() const override {
    const int threads = omp_get_max_threads();
    return fmt::format("cpu ({}), {} thread{}", isa_, threads, threads == 1 ? "" : "s");
  }
  DeviceMemory allocate(Index bytes) override {
    // Large allocations are whole huge pages, which need far fewer address translations.
    constexpr Index huge = Index{1} << 21;
    const Index alignment = bytes >= 2 * huge ? huge : 256;
    const Index blocks = std::max<Index>(1, ceil_div(bytes, alignment));
    const auto size = static_cast<std::size_t>(blocks * alignment);
    void* const memory = std::aligned_alloc(static_cast<std::size_t>(alignment), size);
    if (!memory) no_memory("no memory for {} bytes", bytes);
    if (alignment == huge) madvise(memory, size, MADV_HUGEPAGE);  // a hint: nothing depends on it
    return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
  }
  Index free_bytes() const override { return physical_memory(); }
  Index packed_weight_bytes(const Shape& weight, DType dtype, GemmPass pass, WeightFormat format) const override {
    return format == WeightFormat::native ? native_weight_bytes(weight, dtype, pass)
                                          : Device::packed_weight_bytes(weight, dtype, pass, format);
  }
  bool supports_gathered_rows(DType, std::initializer_list<Index>) const override { return true; }

 private:
  std::string_view isa_;
};

}  // namespace sy::cpu

// The build chooses this name, one for each instruction set (cmake/cpu.cmake).
extern "C" {
extern const sy::CpuKernels SWITCHYARD_CPU_KERNELS;
const sy::CpuKernels SWITCHYARD_CPU_KERNELS = {
    [](std::string_view isa) -> std::unique_ptr<sy::Device> { return std::make_unique<sy::cpu::CpuDevice>(isa); },
    sy::cpu::gemm_batch, sy::cpu::packed_bytes, sy::cpu::pack_operand, sy::cpu::multiply_adds};
}
