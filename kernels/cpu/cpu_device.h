// The cpu device: OpenMP threads over host memory, in f32 and bf16. Shapes and meanings of all
// operations are in kernels/ops/.
#pragma once

#include <vector>

#include "kernels/device.h"

namespace sy::cpu {

class CpuDevice final : public Device {
 public:
  // isa: name of the instruction set that this file is compiled for
  explicit CpuDevice(std::string_view isa);
  std::string_view name() const override { return "cpu"; }
  std::string describe() const override;
  DeviceMemory allocate(Index bytes) override;
  Index free_bytes() const override;
  // products.cpp
  Index packed_weight_bytes(const Shape& weight, DType dtype, GemmPass pass, WeightFormat format) const override;
  bool supports_gathered_rows(DType, std::initializer_list<Index>) const override { return true; }

 protected:
  void do_to_device(const void* host, View x) override;
  void do_to_host(ConstView x, void* host) override;
  void do_begin_read(ConstView x) override;
  void do_end_read(void* host, Index bytes) override;

 private:
  std::string_view isa_;
  std::vector<std::byte> read_;  // content of x at begin_read
};

// The kernels. Their operands are checked, and have elements.
#define SY_DECLARE(Operation) void execute(CpuDevice& device, const ops::Operation& op);
SY_OPERATIONS(SY_DECLARE)
#undef SY_DECLARE

}  // namespace sy::cpu
