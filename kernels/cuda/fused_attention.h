// Attention by cuDNN's fused kernels, behind the build option SWITCHYARD_CUDNN. In a build without
// the option, fused_attention_stub.cpp covers no case.
#pragma once

#include <memory>

#include "kernels/cuda/context.h"
#include "kernels/ops/attention.h"

namespace sy::cuda {

// Returns whether cuDNN computes attention of these operands: bf16, heads of equal width up to 128,
// as many queries as keys, and a causal mask or none. Windows, caches, documents, patterns, biases,
// sinks, caps and the largest scores are left to the kernels of this project. Pure function.
bool is_fused(const ConstHeads& q, const ConstHeads& k, const ConstHeads& v, const AttentionDesc& desc);

// The plans of cuDNN for the operands that a device has seen, and their workspace.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  // Run an operation on the context's stream. They return false, and do nothing, if cuDNN has no
  // kernel for the operands. The result does not depend on the order of threads.
  virtual bool run(const ops::AttentionForward& op) = 0;
  virtual bool run(const ops::AttentionBackward& op) = 0;
};
// Returns nullptr in a build without cuDNN. `context` must outlive the result.
std::unique_ptr<FusedAttention> make_fused_attention(Context& context);

}  // namespace sy::cuda
