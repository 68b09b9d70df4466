// Experts' products by a kernel on top of CUTLASS, behind the build option SWITCHYARD_CUTLASS. In a
// build without the option, make_expert_products() returns nullptr (expert_products_stub.cpp).
#pragma once

#include <memory>

#include "kernels/cuda/context.h"
#include "kernels/cuda/grouped_tiles.h"
#include "kernels/ops/grouped_gemm.h"

namespace sy::cuda {

enum class ExpertPass { fprop, dgrad, wgrad };

// Rows of the matrices of all experts, one matrix after another or gathered through an index.
struct ExpertOperand {
  const void* values = nullptr;
  const std::int32_t* index = nullptr;  // row r is values[index[r]]; nullptr: values[r]
  Index width = 0;                      // elements of a row
  Index rows = 0;                       // of the matrix of each expert; 0: see the group offsets
};

// c_e (+)= op(a_e) op(b_e) for each expert e, as numbers and addresses. Row numbers count from the
// first row of the expert.
// - fprop: a and c are rows of the experts, b has the weights; q is the width of a.
// - dgrad: the same, with the weights not transposed.
// - wgrad: a and b are rows of the experts, over which the product sums; c has the gradients.
struct ExpertProduct {
  ExpertPass pass = ExpertPass::fprop;
  bool accumulate = false;
  DType type = DType::bf16, type_of_c = DType::bf16;
  Index total_rows = 0;  // of all experts
  Index depth = 0;       // number of summed products; 0: the number of rows of the expert
  ExpertOperand a, b, c;
  GroupedOutputs outputs;  // offsets are on the device
};
ExpertProduct expert_product(const ops::GroupedGemm& op);
ExpertProduct expert_product(const ops::GroupedGemmDgrad& op);
ExpertProduct expert_product(const ops::GroupedGemmWgrad& op);

// Multiple of elements that the kernel requires of the width of each row: 16 bytes of bf16.
constexpr Index expert_row_multiple = 8;

// Returns whether the kernel can compute a product. Operands must be bf16. The output must be
// bf16; that of wgrad must be f32. Addresses and rows must be aligned to 16 bytes. It is a pure
// function, in any build.
bool is_served(const ExpertProduct& product);

class ExpertProducts {
 public:
  virtual ~ExpertProducts() = default;
  // Enqueues a product on the context's stream. is_served() must hold. The kernel reads the sizes
  // of the experts on the device. The result does not depend on the order of threads.
  virtual void run(const ExpertProduct& product) = 0;
};
// Returns nullptr in a build without SWITCHYARD_CUTLASS, and on a device whose compute capability
// is not 9.0. `context` must outlive the result.
std::unique_ptr<ExpertProducts> make_expert_products(Context& context, const cudaDeviceProp& properties);

}  // namespace sy::cuda
