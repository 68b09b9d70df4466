// Attention by cuDNN's fused kernels, behind the build option SWITCHYARD_CUDNN. In a build without
// the option, make_fused_attention() returns nullptr (fused_attention_stub.cpp).
#pragma once

#include <memory>

#include "kernels/cuda/context.h"
#include "kernels/ops/attention.h"

namespace sy::cuda {

// Returns whether cuDNN may compute attention of these operands. Pure function, in any build.
// - q is bf16. All heads have one width, a multiple of 8 up to 128. q has as many positions as k.
// - Data and strides are aligned to 16 bytes.
// - The mask is causal or empty: no window, cache, document start, key length, prefix or
//   pattern.
// - There is no bias, sink or cap.
bool is_fused(const ConstHeads& q, const ConstHeads& k, const ConstHeads& v, const AttentionDesc& desc);

// The plans of cuDNN for the operands that a device has seen, and their workspace.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  // Enqueue an operation on the context's stream. is_fused() must hold, and op.largest be empty.
  // They return false and enqueue nothing if cuDNN has no kernel for the operands. Throw Failure if
  // cuDNN fails. The first run of an operation may wait for the stream and allocate memory. The
  // result does not depend on the order of threads.
  virtual bool run(const ops::AttentionForward& op) = 0;
  virtual bool run(const ops::AttentionBackward& op) = 0;
};
// Returns nullptr in a build without SWITCHYARD_CUDNN. Throws Failure if cuDNN cannot start.
// `context` must outlive the result.
std::unique_ptr<FusedAttention> make_fused_attention(Context& context);

}  // namespace sy::cuda
