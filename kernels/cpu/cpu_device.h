// The cpu device: OpenMP threads over host memory, in f32 and bf16. Shapes and meanings of all
// operations are in kernels/ops/.
#pragma once

#include "kernels/device.h"

namespace sy::cpu {

class CpuDevice;

// Device::packed_weight_bytes of WeightFormat::native (products.cpp).
Index native_weight_bytes(const Shape& weight, DType dtype, GemmPass pass);

// The kernels. Their operands are checked, and have elements.
#define SY_DECLARE(Operation) void execute(CpuDevice& device, const ops::Operation& op);
SY_OPERATIONS(SY_DECLARE)
#undef SY_DECLARE

}  // namespace sy::cpu
